// An HTTP/2 server that takes 100 streams per connection, and answers no request before all of a crowd are there.
// Prints its port, and then "<requests> <connections>".
const http2 = require("node:http2");
const crowd = Number(process.argv[2]);
const held = [];
let connections = 0;
const server = http2.createServer({ settings: { maxConcurrentStreams: 100 } });
server.on("session", () => connections++);
server.on("stream", (stream, headers) => {
  stream.on("error", () => {});
  const answer = () => {
    stream.respond({ ":status": 200 });
    stream.end("ok");
  };
  if (headers[":path"] !== "/held") return answer();
  held.push(answer);
  if (held.length === crowd) {
    held.forEach((answer) => answer());
    console.log(`${crowd} ${connections}`);
  }
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.stdin.on("end", () => process.exit()).resume();
