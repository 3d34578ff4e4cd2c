/** Line icons of 20 × 20, drawn for this console. */
const PATHS = {
  overview: 'M3 10.5 10 4l7 6.5M5 9v7.5h10V9',
  traffic: 'M2.5 10h3l2-5 4 10 2-5h4',
  audit: 'M5 3h7l3 3v11H5zM8 9h4M8 12h4M12 3v3h3',
  endpoints:
    'M3 10h5M12 10h5M8 10a2 2 0 1 0 4 0 2 2 0 1 0-4 0M4.5 6.5 10 3l5.5 3.5M4.5 13.5 10 17l5.5-3.5',
  agents: 'M4 4.5h12v8H4zM7.5 16h5M10 12.5V16',
  domains:
    'M10 3a7 7 0 1 0 0 14 7 7 0 1 0 0-14M3.2 10h13.6M10 3c-4.4 4.6-4.4 9.4 0 14 4.4-4.6 4.4-9.4 0-14',
  events: 'M4 5h12v7H9l-3.5 3.5V12H4z',
  access: 'M7 12.5a3.5 3.5 0 1 1 0-5M9.5 10H17M14 10v3M17 10v2',
  nodes: 'M4 4h12v4H4zM4 12h12v4H4zM7 6h.5M7 14h.5',
  more: 'M4 5h5v4H4zM11 5h5v4h-5zM4 11h5v4H4zM11 11h5v4h-5z',
  search: 'M8.5 3.5a5 5 0 1 0 0 10 5 5 0 1 0 0-10M12.3 12.3 17 17',
  copy: 'M7 7h9v9H7zM4 13V4h9',
  check: 'm4 10.5 4 4 8-9',
  close: 'm5 5 10 10M15 5 5 15',
  menu: 'M3 6h14M3 10h14M3 14h14',
  plus: 'M10 4v12M4 10h12',
  sun: 'M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 1 0 0-7M10 2v2M10 16v2M2 10h2M16 10h2M4.3 4.3l1.5 1.5M14.2 14.2l1.5 1.5M15.7 4.3l-1.5 1.5M5.8 14.2l-1.5 1.5',
  moon: 'M16 12.5A7 7 0 0 1 7.5 4a6.5 6.5 0 1 0 8.500 8.5z',
  leave: 'M8 4H4v12h4M12 6.500 15.500 10 12 13.500M15.500 10H8',
  pause: 'M7 5v10M13 5v10',
  play: 'M6 4.500v11l9-5.500z',
  back: 'M11.500 5 6.500 10l5 5',
  warning: 'M10 3.500 17.500 16.500h-15zM10 8.500v3.500M10 14v.5',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18 }: { name: IconName; size?: number }) {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 20 20"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.6"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}
