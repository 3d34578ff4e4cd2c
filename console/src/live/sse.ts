/** One message of a stream of server-sent events. */
export interface Message {
  event: string;
  data: string;
}

/** Reads server-sent events from a body. `EventSource` cannot send the header that the server asks for. */
export async function* messages(stream: ReadableStream<Uint8Array>): AsyncGenerator<Message[]> {
  const reader = stream.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split('\n\n');
    rest = blocks.pop() ?? '';
    const found = blocks.flatMap((block) => parse(block) ?? []);
    if (found.length > 0) yield found;
  }
}

function parse(block: string): Message | undefined {
  let event = 'message';
  const data: string[] = [];
  for (const line of block.split('\n')) {
    if (line.startsWith('data:')) data.push(line.slice(5).trimStart());
    else if (line.startsWith('event:')) event = line.slice(6).trim();
  }
  return data.length > 0 ? { event, data: data.join('\n') } : undefined;
}
