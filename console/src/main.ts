// The entry: asks who is signed in. The sign-in page is made here, without the libraries of the console, which are loaded
// while the person types.
import { early } from './session/early';
import { readSession, type Session, signInByLink } from './session/calls';
import { signInForm } from './session/form';

/** Whether this browser was signed in: the console is then loaded at the same time as the session is asked for. */
const WAS_HERE = 'culvert-signed-in';

/** Without the cookie of a session, the server sends the page that loads nothing ahead: then there is no session to ask for. */
const MAY_HAVE_SESSION =
  import.meta.env.DEV ||
  document.querySelector('link[rel="modulepreload"][href*="/first.js"]') !==
    null;

const load = () => import('./console');

/** Loads ahead. What fails is loaded again when it is needed. */
const soon = (loading: Promise<unknown>): void => void loading.catch(() => {});

/** Asks for what the console needs first, at the same time as the console itself is loaded. */
function hurry(): void {
  const isOverview = location.pathname === '/console/';
  early.ask(isOverview);
  soon(load());
  if (isOverview) soon(import('./overview/overview-page'));
}

/** Shows the sign-in page until somebody signs in. */
function signedIn(root: HTMLElement): Promise<Session> {
  return new Promise((resolve) => {
    const panel = document.createElement('div');
    panel.className = 'start-panel';
    panel.append(signInForm(false, resolve));
    const screen = document.createElement('main');
    screen.className = 'start-screen';
    screen.append(panel);
    root.replaceChildren(screen);
    panel.querySelector('input')?.focus();
  });
}

async function begin(root: HTMLElement): Promise<void> {
  if (location.pathname === '/console/invitation') {
    (await load()).invite(root);
    return;
  }
  // What fails here is shown by the console, which tries again.
  const asking = (MAY_HAVE_SESSION ? readSession() : signInByLink()).catch(
    () => undefined,
  );
  if (MAY_HAVE_SESSION && localStorage.getItem(WAS_HERE)) hurry();
  let session = await asking;
  if (session === null) {
    localStorage.removeItem(WAS_HERE);
    early.forget();
    const entering = signedIn(root);
    soon(load());
    session = await entering;
  }
  if (session) localStorage.setItem(WAS_HERE, '1');
  (await load()).show(root, session);
}

const root = document.getElementById('root');
if (root)
  begin(root).catch(() => {
    const message = document.createElement('p');
    message.setAttribute('role', 'alert');
    message.textContent = 'The console could not be loaded. Reload the page.';
    const screen = document.createElement('main');
    screen.className = 'start-screen';
    screen.append(message);
    root.replaceChildren(screen);
  });
