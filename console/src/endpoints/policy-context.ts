import { createContext } from 'react';
import type { JsonObject } from '@/api/json';

/** The form that a policy is written in. */
export interface PolicyForm {
  /** The values of the form. */
  values: JsonObject;
  /** ID of the object that it changes. */
  id?: string | undefined;
}

export const PolicyFormContext = createContext<PolicyForm>({ values: {} });
