import { Button, type ButtonProps } from '@mantine/core';
import { createLink } from '@tanstack/react-router';
import { type AnchorHTMLAttributes, type Ref } from 'react';

type Props = ButtonProps &
  Omit<AnchorHTMLAttributes<HTMLAnchorElement>, keyof ButtonProps> & {
    ref?: Ref<HTMLAnchorElement>;
  };

function Anchor(props: Props) {
  return <Button component="a" {...props} />;
}

/** A link of the router that looks like a button. */
export const LinkButton = createLink(Anchor);
