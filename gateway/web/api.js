// The REST API as this page uses it. Errors carry the server's own words.

const PATIENCE_MS = 20_000;

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function answered(response) {
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const error = body?.error;
  throw new ApiError(error?.message ?? `The server answered ${response.status}.`, response.status);
}

export async function get(path, { failing = false } = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  } catch {
    throw new ApiError("The server can’t be reached.");
  }
  // Health tells what is wrong in a 503's body.
  return failing && response.status === 503 ? response.json() : answered(response);
}

export async function post(path, body) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new ApiError("The server can’t be reached.");
  }
  return answered(response);
}

// Uploads a file; `progressed` gets the part that is sent, 0 to 1. `fetch` can't tell that.
export function upload(file, progressed) {
  const form = new FormData();
  form.append("purpose", "batch");
  form.append("file", file, file.name);
  const request = new XMLHttpRequest();
  const done = new Promise((resolve, reject) => {
    request.upload.onprogress = (event) => event.lengthComputable && progressed(event.loaded / event.total);
    request.onerror = () => reject(new ApiError("The upload broke off."));
    request.onload = () => {
      let body = null;
      try {
        body = JSON.parse(request.responseText);
      } catch {
        // not ours
      }
      if (request.status === 200 && body) resolve(body);
      else reject(new ApiError(body?.error?.message ?? `The server answered ${request.status}.`, request.status));
    };
  });
  request.open("POST", "/v1/files");
  request.send(form);
  return done;
}
