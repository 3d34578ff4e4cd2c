// What the bundles have in the place of React: Preact does the same for the console in a tenth of the bytes.
import { options } from 'preact';

export * from 'preact/compat';
export { default } from 'preact/compat';

/** Preact has none, and Mantine uses it only for what is kept while it is hidden. This one keeps nothing. */
export const Activity = ({ mode, children }) =>
  mode === 'hidden' ? null : children;

// Effects run before the next event, as those of React do after what a person did: an effect never sees a later event's work.
options.requestAnimationFrame = (flush) => queueMicrotask(flush);
