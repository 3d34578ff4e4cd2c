import type { Error as ErrorBody } from '../../generated/api';

/** A refusal of the server, in its own words. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string | undefined;
  readonly requestId: string | undefined;

  constructor(
    status: number,
    body: Partial<ErrorBody> | null,
    requestId: string | null,
  ) {
    super(body?.msg ?? `The server answered ${status}.`);
    this.name = 'ApiError';
    this.status = status;
    this.code = body?.error_code;
    this.requestId = body?.details?.operation_id ?? requestId ?? undefined;
  }
}

/** Nothing came back: the server is away, or the network is. */
export class LostServerError extends Error {
  constructor() {
    super('The server does not answer.');
    this.name = 'LostServerError';
  }
}
