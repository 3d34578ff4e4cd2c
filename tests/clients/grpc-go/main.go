// Drives gRPC through the server under test with grpc-go, as client and as upstream: unary, client, server
// and bidirectional calls, each on a connection of its own, all at once, first over TLS and then in the clear (HTTP/2
// with prior knowledge).
//
//	CULVERT_API_URL, CULVERT_API_KEY  the server and a key
//	CULVERT_HTTP                      where the edge takes plain HTTP: address and port
//	CULVERT_HTTPS                     where the edge takes TLS: address and port
//	CULVERT_CA                        file with the authority of its certificates
//	CULVERT_GRPC_SECONDS              how long each kind of call runs over TLS; 20 without. At most 5 in the clear
//	CULVERT_GRPC_RATE                 messages a second of each kind; 1000 without
//
// Messages are plain bytes, so no generated code is needed. It needs only the packages that Debian's
// golang-google-grpc-dev brings, and no modules: GO111MODULE=off, GOPATH=/usr/share/gocode.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

const host = "grpc-go.culvert.localhost"

// The size of a message. Small ones cost the most frames a byte.
const messageBytes = 20

// A codec whose messages are bytes.
type plain struct{}

func (plain) Marshal(v interface{}) ([]byte, error) { return *v.(*[]byte), nil }
func (plain) Unmarshal(data []byte, v interface{}) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (plain) Name() string   { return "plain" }
func (plain) String() string { return "plain" }

// The upstream. The method says what it does:
// /x/Unary and /x/Bidi echo, /x/Client counts, /x/Server sends until its client leaves.
func upstream(_ interface{}, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var message []byte
	switch method {
	case "/x/Unary":
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		return stream.SendMsg(&message)
	case "/x/Client":
		count := 0
		for {
			err := stream.RecvMsg(&message)
			if err == io.EOF {
				answer := []byte(strconv.Itoa(count))
				return stream.SendMsg(&answer)
			}
			if err != nil {
				return err
			}
			count++
		}
	case "/x/Server":
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		return paced(func() error { return stream.SendMsg(&message) })
	default:
		for {
			err := stream.RecvMsg(&message)
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if err := stream.SendMsg(&message); err != nil {
				return err
			}
		}
	}
}

func number(name string, without int) int {
	if value, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return value
	}
	return without
}

var (
	duration = time.Duration(number("CULVERT_GRPC_SECONDS", 20)) * time.Second
	every    = time.Second / time.Duration(number("CULVERT_GRPC_RATE", 1000))
)

// Calls step at the wanted rate for the wanted time.
func paced(step func() error) error {
	start := time.Now()
	for next := start; time.Since(start) < duration; next = next.Add(every) {
		time.Sleep(time.Until(next))
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func message() *[]byte {
	message := bytes.Repeat([]byte("m"), messageBytes)
	return &message
}

var description = grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

func unary(ctx context.Context, conn *grpc.ClientConn) (count int, err error) {
	err = paced(func() error {
		var answer []byte
		count++
		return conn.Invoke(ctx, "/x/Unary", message(), &answer)
	})
	return
}

func client(ctx context.Context, conn *grpc.ClientConn) (count int, err error) {
	stream, err := conn.NewStream(ctx, &description, "/x/Client")
	if err != nil {
		return 0, err
	}
	err = paced(func() error {
		count++
		return stream.SendMsg(message())
	})
	var answer []byte
	if err == nil {
		err = stream.CloseSend()
	}
	if err == nil || err == io.EOF {
		// After a failed send the reason is what receiving says.
		if status := stream.RecvMsg(&answer); status != nil {
			err = status
		}
	}
	if err == nil && string(answer) != strconv.Itoa(count) {
		err = fmt.Errorf("%d were sent and %s arrived", count, answer)
	}
	return
}

func server(ctx context.Context, conn *grpc.ClientConn) (count int, err error) {
	stream, err := conn.NewStream(ctx, &description, "/x/Server")
	if err != nil {
		return 0, err
	}
	if err = stream.SendMsg(message()); err != nil {
		return 0, err
	}
	if err = stream.CloseSend(); err != nil {
		return 0, err
	}
	for ; ; count++ {
		var answer []byte
		if err = stream.RecvMsg(&answer); err == io.EOF {
			return count, nil
		} else if err != nil {
			return count, err
		}
	}
}

func bidirectional(ctx context.Context, conn *grpc.ClientConn) (count int, err error) {
	stream, err := conn.NewStream(ctx, &description, "/x/Bidi")
	if err != nil {
		return 0, err
	}
	err = paced(func() error {
		var answer []byte
		if err := stream.SendMsg(message()); err != nil && err != io.EOF {
			return err
		}
		count++
		return stream.RecvMsg(&answer)
	})
	if err != nil {
		return
	}
	if err = stream.CloseSend(); err != nil {
		return
	}
	var rest []byte
	if err = stream.RecvMsg(&rest); err == io.EOF {
		err = nil
	}
	return
}

func endpoint(scheme, host, upstream string) error {
	body, err := json.Marshal(map[string]string{
		"url":               scheme + "://" + host,
		"upstream_url":      "http://" + upstream,
		"upstream_protocol": "http2",
	})
	if err != nil {
		return err
	}
	request, err := http.NewRequest("POST", os.Getenv("CULVERT_API_URL")+"/endpoints", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("CULVERT_API_KEY"))
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		text, _ := io.ReadAll(answer.Body)
		return fmt.Errorf("%s: %s", answer.Status, text)
	}
	return nil
}

// Waits until the edge knows the endpoint.
func live(ctx context.Context, conn *grpc.ClientConn) error {
	for {
		var answer []byte
		err := conn.Invoke(ctx, "/x/Unary", message(), &answer)
		if status.Code(err) != codes.Unimplemented {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Connects to the edge. What it says of a host in the clear is only :authority.
func dial(ctx context.Context, scheme, host string, roots *x509.CertPool) (*grpc.ClientConn, error) {
	at, transport := os.Getenv("CULVERT_HTTP"), grpc.WithInsecure()
	if scheme == "https" {
		at = os.Getenv("CULVERT_HTTPS")
		transport = grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: host}))
	}
	return grpc.DialContext(ctx, at, grpc.WithBlock(), grpc.FailOnNonTempDialError(true),
		grpc.WithAuthority(host), transport,
		grpc.WithDefaultCallOptions(grpc.ForceCodec(plain{})))
}

// Calls an upstream that is not there: the error is one of the edge, and has its status and text.
func refused(ctx context.Context, scheme string, roots *x509.CertPool) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	listener.Close()
	const gone = "grpc-go-gone.culvert.localhost"
	if err := endpoint(scheme, gone, listener.Addr().String()); err != nil {
		return err
	}
	conn, err := dial(ctx, scheme, gone, roots)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = live(ctx, conn)
	if status.Code(err) != codes.Unavailable || !strings.Contains(status.Convert(err).Message(), "ERR_NGROK_8012: ") {
		return fmt.Errorf("without its upstream a call ended with %w", err)
	}
	return nil
}

func run() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	service := grpc.NewServer(grpc.CustomCodec(plain{}), grpc.UnknownServiceHandler(upstream))
	go service.Serve(listener)
	defer service.Stop()
	authority, err := os.ReadFile(os.Getenv("CULVERT_CA"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return errors.New("no authority in CULVERT_CA")
	}
	ctx, cancel := context.WithTimeout(context.Background(), duration+3*time.Minute)
	defer cancel()
	for _, scheme := range []string{"https", "http"} {
		if err := endpoint(scheme, host, listener.Addr().String()); err != nil {
			return err
		}
		if err := calls(ctx, scheme, roots); err != nil {
			return fmt.Errorf("%s: %w", scheme, err)
		}
		if duration > 5*time.Second {
			duration = 5 * time.Second
		}
	}
	return nil
}

func calls(ctx context.Context, scheme string, roots *x509.CertPool) error {
	kinds := []struct {
		name string
		call func(context.Context, *grpc.ClientConn) (int, error)
	}{{"unary", unary}, {"client", client}, {"server", server}, {"bidirectional", bidirectional}}
	var all sync.WaitGroup
	errs := make([]error, len(kinds))
	for at, kind := range kinds {
		at, kind := at, kind
		conn, err := dial(ctx, scheme, host, roots)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := live(ctx, conn); err != nil {
			return err
		}
		all.Add(1)
		go func() {
			defer all.Done()
			start := time.Now()
			count, err := kind.call(ctx, conn)
			took := time.Since(start)
			fmt.Printf("%s, %s: %d messages in %.1f s\n", scheme, kind.name, count, took.Seconds())
			if err == nil && took < duration {
				err = errors.New("it ended early")
			}
			if err != nil {
				errs[at] = fmt.Errorf("%s: after %d messages and %.1f s: %w", kind.name, count, took.Seconds(), err)
			}
		}()
	}
	all.Wait()
	if err := refused(ctx, scheme, roots); err != nil {
		return err
	}
	for _, err := range errs {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	for _, err := range errs {
		if err != nil {
			return errors.New("calls were cut")
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
