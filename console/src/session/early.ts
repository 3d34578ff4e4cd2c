import { ahead, API_PREFIX, consoleFetch } from '@/api/http';

const DOCUMENT = '/openapi.json';
const SELF = `${API_PREFIX}/self`;
/** What the overview counts. */
const LISTS = [
  'endpoints',
  'tunnel_sessions',
  'reserved_domains',
  'event_destinations',
  'api_keys',
];

let isDocumentAsked = false;

function ask(url: string): void {
  if (url === DOCUMENT) isDocumentAsked = true;
  const answer = url === DOCUMENT ? fetch(url) : consoleFetch(url);
  // It is looked at when it is taken.
  answer.catch(() => {});
  ahead.set(url, answer);
}

/** The answer that was asked for before, once; else another one. */
function take(url: string): Promise<Response> {
  if (!ahead.has(url)) ask(url);
  const answer = ahead.get(url) as Promise<Response>;
  ahead.delete(url);
  return answer;
}

/** Answers that the first page needs, which the entry asks for before the console is loaded. */
export const early = {
  ask(isOverview: boolean): void {
    ask(SELF);
    if (isOverview)
      for (const list of LISTS) ask(`${API_PREFIX}/${list}?limit=100`);
    else early.askDocument();
  },
  /** They were asked for without a session. */
  forget(): void {
    for (const url of [...ahead.keys()])
      if (url !== DOCUMENT) ahead.delete(url);
  },
  /** Asks for the document at the same time as for a page that needs it. */
  askDocument(): void {
    if (!isDocumentAsked) ask(DOCUMENT);
  },
  document: () => take(DOCUMENT),
  self: () => take(SELF),
};
