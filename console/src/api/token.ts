/** Both forms of tokens. The id in the middle is that of their object. */
export const TOKEN =
  /^(?:culvert_(key|agent|invite)_)?([0-9A-Za-z]{27})_[0-9A-Za-z]{21,27}$/;
/** What may become a token when all of it is typed, and so goes nowhere. */
const LIKE_TOKEN =
  /culvert_(key|agent|link|invite)_|[0-9A-Za-z]{27}_[0-9A-Za-z]/;

export const isLikeToken = (text: string): boolean => LIKE_TOKEN.test(text);

export const TOKEN_REFUSED =
  'This looks like a token, which is a secret, and went nowhere. Search for the ID of its object: Ctrl+K finds it.';
