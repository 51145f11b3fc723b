/**
 * Reading server-sent events from a fetch response (HTML standard, "Server-sent events").
 *
 * Owns the form of the stream. What the data mean is api.js's to know.
 */

/** The data of each event, however the bytes were cut on the way. */
export async function* eventData(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      // A CR at the end may be half of a CR LF, unless it is the end of all.
      const lines = rest.split(done ? /\r\n|\n|\r/ : /\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
