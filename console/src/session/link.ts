/** Takes the secret of a link that signs in once out of the address, so that it is not in the history. */
function takeSecret(): string | undefined {
  const [, secret] = /^#sign-in=(.+)$/.exec(location.hash) ?? [];
  if (secret) history.replaceState(null, '', location.pathname);
  return secret;
}

let unused = takeSecret();

// Opened in a tab that has the console already, such as the sign-in page, the link changes only what is behind the `#`.
addEventListener('hashchange', () => {
  if (location.hash.startsWith('#sign-in=')) location.reload();
});

/** The secret of the link that opened the page, once. */
export function secretOfLink(): string | undefined {
  const secret = unused;
  unused = undefined;
  return secret;
}

/** Why that link did not sign in. */
export const refusedLink = { message: '' };
