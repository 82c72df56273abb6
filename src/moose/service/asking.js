// Questions to the server that the page came from, and to nobody else.

const PATIENCE = 5000;  // milliseconds after which a question counts as not answered

// What the address says behind its #.
export const option = (name) => new URLSearchParams(location.hash.slice(1)).get(name);

export class Unanswered extends Error {
  constructor(status = null, told = null) {
    super("no answer");
    this.status = status;
    this.told = told;  // what, where and advice, if the service has refused in its own words
  }
}

export async function ask(path, { patience = PATIENCE, read = (answer) => answer.json() } = {}) {
  const token = option("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch(path, { headers, signal: AbortSignal.timeout(patience) });
    if (answer.ok) return await read(answer);
  } catch (error) {
    throw new Unanswered();
  }
  throw new Unanswered(answer.status, await answer.json().catch(() => null));
}

export const needsToken = (path) => `The service wants a token. Open this page as ${path}#token=… with the value ` +
  "of MOOSE_SERVE_TOKEN that the service was started with.";

// A link to another page of the service, which gets the token only when it is followed.
export function carryToken(link) {
  link.addEventListener("click", () => {
    const token = option("token");
    if (token) link.hash = new URLSearchParams({ token });
  });
}
