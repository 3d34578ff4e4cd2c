/** One message of a stream of server-sent events. Without `data` it only says behind which ID the stream resumes. */
export interface Message {
  event: string;
  data: string;
  id?: string;
}

/** Reads server-sent events from a body, piece by piece. `EventSource` cannot send the header that the server asks for. */
export async function* messages(
  stream: ReadableStream<Uint8Array>,
): AsyncGenerator<Message[]> {
  const reader = stream
    .pipeThrough(
      new TextDecoderStream() as unknown as ReadableWritablePair<
        string,
        Uint8Array
      >,
    )
    .getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split('\n\n');
    rest = blocks.pop() ?? '';
    yield blocks.flatMap((block) => parse(block) ?? []);
  }
}

function parse(block: string): Message | undefined {
  let event = 'message';
  let id: string | undefined;
  const data: string[] = [];
  for (const line of block.split('\n')) {
    if (line.startsWith('data:')) data.push(line.slice(5).trimStart());
    else if (line.startsWith('event:')) event = line.slice(6).trim();
    else if (line.startsWith('id:')) id = line.slice(3).trim();
  }
  return data.length > 0 || id !== undefined
    ? { event, data: data.join('\n'), ...(id === undefined ? {} : { id }) }
    : undefined;
}
