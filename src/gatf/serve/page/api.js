// The server's addresses. A refusal is an Error with the server's own sentence.

let token = sessionStorage.getItem("gatf-token");

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export function useToken(text) {
  token = text;
  sessionStorage.setItem("gatf-token", text);
}

export async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Refused(0, "The server does not respond. Is it still running?");
  }
  if (response.ok) return response;
  let sentence = `The server returned ${response.status}.`;
  try {
    sentence = (await response.json()).detail;
  } catch { /* not JSON: only the status is known */ }
  throw new Refused(response.status, sentence);
}

export const get = async path => (await call(path)).json();
export const post = async (path, body) => (await call(path, { method: "POST", body })).json();
export const remove = async path => (await call(path, { method: "DELETE" })).json();

/** Server-sent events by fetch, which can send a token; `hear` gets every state. */
export async function listen(path, hear) {
  const reader = (await call(path)).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").find(line => line.startsWith("data: "));
      if (data) hear(JSON.parse(data.slice(6)));
    }
  }
}

export async function download(path) {
  const response = await call(path);
  const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") || "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name ? name[1] : "model";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
