// Serves endpoints with golang.org/x/crypto/ssh, whose Listen asks for an address of RFC 4254 7.1 and takes only
// connections of that address.
//
//	CULVERT_SSH        the server: address and port
//	CULVERT_SSH_KEY    file with the client's key
//	CULVERT_HTTP       where the edge takes plain HTTP: address and port
//	CULVERT_TCP_PORT   the only port of TCP endpoints
//
// It needs only the packages that Debian's golang-golang-x-crypto-dev brings, and no modules: GO111MODULE=off,
// GOPATH=/usr/share/gocode.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// The addresses that mean "everywhere" or "this machine", none of which names an endpoint.
var addresses = []string{"0.0.0.0", "127.0.0.1", "[::]", "[::1]"}

type form struct {
	port    string
	command string
}

var forms = []form{{"80", "http --scheme http"}, {"0", "http --scheme http"}, {"0", "tcp"}}

// The value behind a label of the server's lines.
func labelled(lines *bufio.Scanner, label string) (string, error) {
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, label) {
			return strings.TrimSpace(line[len(label):]), nil
		}
	}
	return "", fmt.Errorf("no line %q: %w", label, io.ErrUnexpectedEOF)
}

func serve(address string, form form) error {
	key, err := os.ReadFile(os.Getenv("CULVERT_SSH_KEY"))
	if err != nil {
		return err
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		return err
	}
	client, err := ssh.Dial("tcp", os.Getenv("CULVERT_SSH"), &ssh.ClientConfig{
		User:            "v2",
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		Timeout:         30 * time.Second,
	})
	if err != nil {
		return err
	}
	defer client.Close()
	listener, err := client.Listen("tcp", address+":"+form.port)
	if err != nil {
		return err
	}
	text := "hello from " + address
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, text)
	}))
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	out, err := session.StdoutPipe()
	if err != nil {
		return err
	}
	if err := session.Start(form.command); err != nil {
		return err
	}
	forwarding, err := labelled(bufio.NewScanner(out), "Forwarding")
	if err != nil {
		return err
	}
	public := strings.Fields(forwarding)[0]
	at := os.Getenv("CULVERT_HTTP")
	if strings.HasPrefix(public, "tcp://") {
		at = "127.0.0.1:" + os.Getenv("CULVERT_TCP_PORT")
		public = "http://tcp"
	}
	transport := &http.Transport{Dial: func(network, _ string) (net.Conn, error) {
		return net.DialTimeout(network, at, 30*time.Second)
	}}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(public)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK || string(body) != text {
		return fmt.Errorf("%s: %s", answer.Status, body)
	}
	return nil
}

// Serves again while the port of the form before is not free yet.
func patiently(address string, form form) (err error) {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if err = serve(address, form); !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
	}
	return err
}

func main() {
	failed := false
	for _, address := range addresses {
		for _, form := range forms {
			if err := patiently(address, form); err != nil {
				failed = true
				fmt.Fprintf(os.Stderr, "%s:%s %s: %v\n", address, form.port, form.command, err)
			}
		}
	}
	if failed {
		os.Exit(1)
	}
}
