/** Endpoints that can be compared at once. */
export const FEWEST = 2;
export const MOST = 8;
const ID = /^ep_[0-9A-Za-z]{1,64}$/;

/** The IDs that an address names, each once. */
export const idsOf = (text: string | undefined): string[] =>
  [...new Set((text ?? '').split(',').filter((id) => ID.test(id)))].slice(
    0,
    MOST,
  );
