import { type ComponentType, lazy } from 'react';
import { isOld, OldConsoleError } from './build';
import { moreStyles } from '@/theme/more';
import { connection } from './connection';

/** How often a file is asked for that an answering server does not give. */
const TRIES = 3;

/**
 * Loads a part of the console. While the server is away it waits, and goes on by itself. A server of another version does
 * not have the part: then the page must be loaded again.
 */
export async function load<T>(get: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await get();
    } catch (error) {
      await connection.untilThere();
      if (await isOld()) throw new OldConsoleError();
      if (tries >= TRIES) throw error;
    }
  }
}

/** A component in a file of its own, which is loaded when it is first shown, with the styles of the library. */
export function lazyPart<P>(get: () => Promise<{ default: ComponentType<P> }>) {
  return lazy(() =>
    load(async () => (await Promise.all([get(), moreStyles()]))[0]),
  );
}
