const EVERY_MS = 2000;

async function answers(): Promise<boolean> {
  const headers = { 'x-culvert-console': '1' };
  return fetch('/console/session', { headers }).then(
    () => true,
    () => false,
  );
}

/** Whether the server answers. While it does not, it is asked again until it does; then `onBack` is called. */
class Connection {
  lost = false;
  onBack: () => void = () => {};
  readonly #watchers = new Set<() => void>();

  lose(): void {
    if (this.lost) return;
    this.#set(true);
    setTimeout(() => void this.#ask(), EVERY_MS);
  }

  /** Waits until the server answers; not at all if it does. */
  async untilThere(): Promise<void> {
    if (!this.lost && (await answers())) return undefined;
    this.lose();
    return new Promise((resolve) => {
      const forget = this.watch(() => {
        forget();
        resolve();
      });
    });
  }

  async #ask(): Promise<void> {
    if (!(await answers())) {
      setTimeout(() => void this.#ask(), EVERY_MS);
      return;
    }
    this.#set(false);
    this.onBack();
  }

  #set(lost: boolean): void {
    this.lost = lost;
    for (const watcher of this.#watchers) watcher();
  }

  readonly watch = (watcher: () => void): (() => void) => {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  };
}

export const connection = new Connection();
