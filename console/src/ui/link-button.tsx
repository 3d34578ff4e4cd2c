import { Button, type ButtonProps } from '@mantine/core';
import { type LinkProps, useLink } from '@/routing/link';

/** A link that looks like a button. */
export function LinkButton<P extends string>(
  props: LinkProps<P> & Omit<ButtonProps, keyof LinkProps<P>>,
) {
  return <Button component="a" {...(useLink(props) as object)} />;
}
