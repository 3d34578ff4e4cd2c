/** Whose events are followed: people who sign in one after the other in this browser share nothing. */
export const viewer = { owner: '' };
