// Requests to the service. Whatever it refuses becomes a `Refusal` with the service's line and its remedy.

const UNREACHABLE = ["the service does not answer", "look whether fheat studio still runs, then load this page again"];

/** What went wrong in one line, and what to do about it. */
export class Refusal extends Error {
  constructor(reason, remedy, status = 0) {
    super(reason);
    this.remedy = remedy;
    this.status = status;
  }
}

/** Send a request and return the JSON answer. `json` is a body to send as JSON. */
export async function ask(path, { method = "GET", json, signal } = {}) {
  const options = { method, signal };
  if (json !== undefined) {
    options.body = JSON.stringify(json);
    options.headers = { "Content-Type": "application/json" };
  }
  const answer = await reach(path, options);
  return answer.json();
}

/** Return the bytes behind an address of the service. */
export async function bytesOf(path) {
  return (await reach(path, {})).arrayBuffer();
}

async function reach(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(...UNREACHABLE);
  }
  if (!answer.ok) throw refusalOf(answer.status, await answer.text());
  return answer;
}

/**
 * Send a file or bytes as the raw body of a PUT and return the JSON answer. `onProgress` gets the share that is sent;
 * fetch cannot tell it, so this is an XMLHttpRequest.
 */
export function upload(path, body, onProgress = () => {}) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", path);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) onProgress(event.loaded / event.total);
    });
    request.addEventListener("error", () => reject(new Refusal(...UNREACHABLE)));
    request.addEventListener("load", () => {
      if (request.status >= 200 && request.status < 300) resolve(JSON.parse(request.responseText));
      else reject(refusalOf(request.status, request.responseText));
    });
    request.send(body);
  });
}

function refusalOf(status, text) {
  try {
    const { error, remedy } = JSON.parse(text);
    if (typeof error === "string") return new Refusal(error, remedy ?? "", status);
  } catch {
    // Not JSON: the answer of something else than our service.
  }
  const remedy = status === 401 ? "open the address that fheat studio printed" : "load this page again";
  return new Refusal(`the service answered ${status}`, remedy, status);
}
