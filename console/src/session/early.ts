import { API_PREFIX, consoleFetch } from '@/api/http';

type Answers = Record<'self' | 'document', Promise<Response> | undefined>;

const answers: Answers = { self: undefined, document: undefined };

const ask = {
  self: () => consoleFetch(`${API_PREFIX}/self`),
  document: () => fetch('/openapi.json'),
};

/** The two answers that every page needs, which the entry may have asked for before the console was loaded. */
export const early = {
  ask(): void {
    for (const name of ['document', 'self'] as const) {
      const answer = ask[name]();
      // It is looked at when it is taken.
      answer.catch(() => {});
      answers[name] = answer;
    }
  },
  /** The rights were asked for without a session. */
  forget(): void {
    answers.self = undefined;
  },
  /** The answer that was asked for before, once; else another one. */
  take(name: keyof Answers): Promise<Response> {
    const answer = answers[name] ?? ask[name]();
    answers[name] = undefined;
    return answer;
  },
};
