const ROLES: Record<string, string> = {
  admin: 'Admin',
  member: 'Member',
  read_only: 'Read-only',
};

/** The word for a role of the API. */
export function roleOf(role: string): string {
  return ROLES[role] ?? role;
}
