import { ApiError } from '@/api/error';
import { toClipboard } from '@/ui/clipboard';
import { readProvider, type Session, signIn } from './calls';
import { refusedLink } from './link';

/** Why the server sent the browser back from the provider without a session, by the number of its error code. */
const REFUSED: Record<string, string> = {
  205: 'The account is suspended.',
  0: 'The server is busy. Try again shortly.',
  220: 'An IP restriction blocks your address.',
  226: 'Too many sign-ins from your address, or of your user. Try again later.',
  636: 'Your user is inactive. Ask an admin.',
  644: 'You are the last admin, and your groups give you a lower role. Ask the operator.',
  645: 'Your invitation has expired. Ask an admin for another one.',
  647: 'Your user at the provider may not sign in here. Ask an admin for an invitation.',
  648: 'The sign-in was denied, has expired, or began in another browser. Try again.',
  649: 'The provider does not work. The log of the server says why.',
};

function refusedSignIn(): string | undefined {
  const number = new URLSearchParams(location.search).get('refused');
  return number === null
    ? undefined
    : (REFUSED[number] ?? 'The sign-in failed. Try again.');
}

/** An element with these attributes and children. */
function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string>,
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const alert = (message: string) =>
  el('p', { role: 'alert', class: 'start-error' }, message);

function command(value: string): HTMLElement {
  const button = el(
    'button',
    { type: 'button', class: 'start-quiet', 'aria-live': 'polite' },
    'Copy',
  );
  button.addEventListener('click', () => {
    void toClipboard(value).then((done) => {
      button.textContent = done ? 'Copied.' : 'Select the text and copy it.';
    });
  });
  return el(
    'div',
    { class: 'start-copy' },
    el(
      'pre',
      { tabindex: '0', role: 'group', 'aria-label': 'the command' },
      value,
    ),
    button,
  );
}

/** The code and the request of a refusal, which the log of the server has too. */
function codes({ code, requestId }: ApiError): HTMLElement {
  const line = el('p', { class: 'start-dim start-codes' });
  if (code) line.append(el('code', {}, code), ' ');
  if (requestId) line.append('Request ', el('code', {}, requestId));
  return line;
}

/** The way to an OpenID provider, when the installation has one. */
async function addProvider(place: HTMLElement): Promise<void> {
  const provider = await readProvider().catch(() => null);
  if (!provider) return;
  const refused = refusedSignIn();
  if (refused) place.before(alert(refused));
  place.before(
    el(
      'a',
      { href: '/console/sign-in', class: 'start-button' },
      `Log in with ${provider}`,
    ),
    el('p', { class: 'start-dim' }, 'Or with an API key:'),
  );
}

/**
 * Asks for the token of an API key. `again`: a session ended while the person was at work. Made without a library, so that
 * the sign-in page is there before the console is loaded.
 */
export function signInForm(
  again: boolean,
  onSession: (session: Session) => unknown,
): HTMLFormElement {
  const id = again ? 'token-again' : 'token';
  const input = el('input', {
    id,
    type: 'password',
    autocomplete: 'current-password',
    'aria-describedby': `${id}-error`,
    autofocus: '',
  });
  const show = el(
    'button',
    { type: 'button', class: 'start-quiet', 'aria-pressed': 'false' },
    'Show',
  );
  show.setAttribute('aria-label', 'Show the token');
  show.addEventListener('click', () => {
    const isShown = input.type === 'password';
    input.type = isShown ? 'text' : 'password';
    show.setAttribute('aria-pressed', String(isShown));
  });
  const enter = el(
    'button',
    { type: 'submit', class: 'start-button', disabled: '' },
    'Sign in',
  );
  const error = el('div', { id: `${id}-error` });
  const field = el(
    'div',
    {},
    el('label', { for: id }, 'Token of an API key'),
    el('div', { class: 'start-field' }, input, show),
    error,
  );
  input.addEventListener('input', () => {
    enter.disabled = input.value.trim() === '';
  });
  const form = el(
    'form',
    { class: 'start-form' },
    el('img', {
      src: '/console/assets/icon.svg',
      width: '44',
      height: '44',
      alt: '',
    }),
    el('h1', {}, again ? 'Sign in again' : 'Sign in to culvert'),
    field,
    enter,
    el(
      'details',
      {},
      el('summary', {}, 'Where do I find a token?'),
      el(
        'p',
        {},
        "The first key's token is in the data directory of the server:",
      ),
      command('cat culvert-data/bootstrap-key'),
      el(
        'p',
        {},
        'If all tokens are lost, make another key beside the server:',
      ),
      command('culvert admin create-key'),
    ),
  );
  if (again)
    field.before(
      el(
        'p',
        { class: 'start-dim' },
        'Your session ended. Sign in and go on where you were.',
      ),
    );
  if (refusedLink.message) field.before(alert(refusedLink.message));
  void addProvider(field);

  async function submit(): Promise<void> {
    enter.disabled = true;
    error.replaceChildren();
    input.removeAttribute('aria-invalid');
    try {
      await onSession(await signIn(input.value.trim()));
    } catch (failure) {
      const isUnknown = failure instanceof ApiError && failure.status === 401;
      error.replaceChildren(
        alert(
          isUnknown
            ? 'The server does not know this token.'
            : (failure as Error).message,
        ),
        ...(failure instanceof ApiError ? [codes(failure)] : []),
      );
      input.setAttribute('aria-invalid', 'true');
    } finally {
      enter.disabled = false;
    }
  }
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    if (!enter.disabled) void submit();
  });
  return form;
}
