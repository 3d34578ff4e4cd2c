import { Fragment } from 'react';
import { escaped } from './escaped';

/** After a slash or another sign between words, and before a dot or a port: but not within an IP address. */
const BETWEEN = /(?<=[/@_=&?,])(?!\/)|(?=\.[\w-]*[A-Za-z])|(?=:\d+(?:\/|$))/;

/** A name or an address that takes several lines only where its parts meet. */
export function Breakable({ text }: { text: string }) {
  return (
    <>
      {escaped(text)
        .split(BETWEEN)
        .map((part, index) => (
          <Fragment key={index}>
            {index > 0 ? <wbr /> : null}
            {part}
          </Fragment>
        ))}
    </>
  );
}
