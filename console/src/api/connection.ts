const EVERY_MS = 2000;

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

  async #ask(): Promise<void> {
    try {
      await fetch('/console/session', {
        headers: { 'x-culvert-console': '1' },
      });
    } catch {
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
