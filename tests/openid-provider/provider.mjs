// A certified OpenID provider for the tests of log-ins. It listens on a free port of this machine and
// prints its issuer; accounts are whatever name is entered. Ends when its standard input does.
//
// Arguments: redirect URIs of the one client, `app` with the secret `a secret of the tests`.
import { createServer } from "node:http";
import Provider from "oidc-provider";

const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id: "app",
        client_secret: "a secret of the tests",
        grant_types: ["authorization_code", "refresh_token"],
        response_types: ["code"],
        redirect_uris: process.argv.slice(2),
      },
    ],
    claims: { openid: ["sub"], groups: ["groups"], email: ["email", "email_verified"], profile: ["name", "preferred_username"] },
    cookies: { keys: ["a key of the tests"] },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({
        sub: id,
        email: `${id}@x.example`,
        email_verified: true,
        name: `Name of ${id}`,
        preferred_username: id,
        // `ops-ann` is in the group `ops`.
        groups: id.includes("-") ? [id.split("-")[0]] : [],
      }),
    }),
    // A refresh token is good for one use.
    rotateRefreshToken: true,
    issueRefreshToken: () => true,
    pkce: { required: () => true },
    ttl: { AccessToken: 2, IdToken: 600, Session: 600, Grant: 600, Interaction: 600, RefreshToken: 600 },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
process.stdin.on("end", () => process.exit(0)).resume();
