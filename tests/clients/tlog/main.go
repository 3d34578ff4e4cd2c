// Verifies proofs and checkpoints of the audit log with the code of Go's checksum database: the hashes and proofs of
// golang.org/x/mod/sumdb/tlog and the signed notes of golang.org/x/mod/sumdb/note.
//
// It reads a file whose first line has the verifier keys, and whose other lines have one text each: a proof that an
// entry is in the log (C2SP tlog-proof), or a request to a witness (C2SP tlog-witness), which proves that a tree
// continues another one. Each must be accepted, and refused after one of its bits is changed.
//
// It is built by scripts/go-clients with the packages that Debian's golang-golang-x-mod-dev brings, and no modules:
// GO111MODULE=off, GOPATH=/usr/share/gocode.
package main

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type keys struct {
	Origin  string `json:"origin"`
	Witness string `json:"witness"`
	Texts   int    `json:"texts"`
}

type line struct {
	Proof   string `json:"proof"`
	Request string `json:"request"`
	OldRoot string `json:"old_root"`
}

// A key of cosignature/v1, which the package does not have.
type cosigner struct {
	name string
	id   uint32
	key  ed25519.PublicKey
}

func (c cosigner) Name() string    { return c.name }
func (c cosigner) KeyHash() uint32 { return c.id }
func (c cosigner) Verify(text, signature []byte) bool {
	if len(signature) != 72 {
		return false
	}
	time := binary.BigEndian.Uint64(signature)
	message := fmt.Sprintf("cosignature/v1\ntime %d\n%s", time, text)
	return ed25519.Verify(c.key, []byte(message), signature[8:])
}

func newCosigner(text string) (note.Verifier, error) {
	parts := strings.SplitN(text, "+", 3)
	if len(parts) != 3 {
		return nil, errors.New("a key has three parts")
	}
	id, err := strconv.ParseUint(parts[1], 16, 32)
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(parts[2])
	if err != nil || len(key) != 33 || key[0] != 4 {
		return nil, errors.New("not a key of cosignature/v1")
	}
	return cosigner{parts[0], uint32(id), key[1:]}, nil
}

type tree struct {
	size int64
	root tlog.Hash
}

// A hash in its one spelling. The packages do not look at the unused bits of the last digit of base64.
func parseHash(text string) (tlog.Hash, error) {
	hash, err := tlog.ParseHash(text)
	if err == nil && hash.String() != text {
		err = errors.New("a hash in another spelling")
	}
	return hash, err
}

// The tree of a checkpoint that all these keys signed.
func open(text string, origin string, verifiers ...note.Verifier) (t tree, err error) {
	opened, err := note.Open([]byte(text), note.VerifierList(verifiers...))
	if err != nil {
		return t, err
	}
	if len(opened.Sigs) != len(verifiers) || len(opened.UnverifiedSigs) > 0 {
		return t, errors.New("not signed by each key alone")
	}
	for _, signature := range opened.Sigs {
		if _, err := base64.StdEncoding.Strict().DecodeString(signature.Base64); err != nil {
			return t, err
		}
	}
	lines := strings.Split(opened.Text, "\n")
	if len(lines) != 4 || lines[0] != origin || lines[3] != "" {
		return t, errors.New("not a checkpoint of this log")
	}
	if t.size, err = strconv.ParseInt(lines[1], 10, 64); err != nil {
		return t, err
	}
	t.root, err = parseHash(lines[2])
	return t, err
}

func number(line, name string) (int64, error) {
	if !strings.HasPrefix(line, name+" ") {
		return 0, fmt.Errorf("no line %q", name)
	}
	digits := line[len(name)+1:]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err == nil && strconv.FormatInt(n, 10) != digits {
		err = errors.New("a number in another spelling")
	}
	return n, err
}

func hashes(lines []string) (all []tlog.Hash, err error) {
	for _, line := range lines {
		hash, err := parseHash(line)
		if err != nil {
			return nil, err
		}
		all = append(all, hash)
	}
	return all, nil
}

func split(text string) ([]string, string, error) {
	at := strings.Index(text, "\n\n")
	if at < 0 || !utf8.ValidString(text) {
		return nil, "", errors.New("no checkpoint")
	}
	return strings.Split(text[:at], "\n"), text[at+2:], nil
}

func checkProof(text, origin string, verifiers ...note.Verifier) error {
	lines, checkpoint, err := split(text)
	if err != nil {
		return err
	}
	if len(lines) < 3 || lines[0] != "c2sp.org/tlog-proof@v1" || !strings.HasPrefix(lines[1], "extra ") {
		return errors.New("not a proof")
	}
	entry, err := base64.StdEncoding.Strict().DecodeString(lines[1][6:])
	if err != nil {
		return err
	}
	index, err := number(lines[2], "index")
	if err != nil {
		return err
	}
	proof, err := hashes(lines[3:])
	if err != nil {
		return err
	}
	head, err := open(checkpoint, origin, verifiers...)
	if err != nil {
		return err
	}
	return tlog.CheckRecord(proof, head.size, head.root, index, tlog.RecordHash(entry))
}

func checkRequest(text, origin string, oldRoot tlog.Hash, verifiers ...note.Verifier) error {
	lines, checkpoint, err := split(text)
	if err != nil {
		return err
	}
	old, err := number(lines[0], "old")
	if err != nil {
		return err
	}
	proof, err := hashes(lines[1:])
	if err != nil {
		return err
	}
	head, err := open(checkpoint, origin, verifiers...)
	if err != nil {
		return err
	}
	return tlog.CheckTree(proof, head.size, head.root, old, oldRoot)
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: tlog FILE")
	}
	data, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	scanner := bufio.NewScanner(bytes.NewReader(data))
	scanner.Buffer(nil, 1<<20)
	var keys keys
	if !scanner.Scan() || json.Unmarshal(scanner.Bytes(), &keys) != nil {
		log.Fatal("the first line has no keys")
	}
	logKey, err := note.NewVerifier(keys.Origin)
	if err != nil {
		log.Fatal(err)
	}
	witness, err := newCosigner(keys.Witness)
	if err != nil {
		log.Fatal(err)
	}
	origin := logKey.Name()
	random := rand.New(rand.NewSource(1))
	n := 0
	for scanner.Scan() {
		var line line
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			log.Fatal(err)
		}
		text := line.Proof + line.Request
		check := func(text string) error { return checkProof(text, origin, logKey, witness) }
		if line.Request != "" {
			oldRoot, err := tlog.ParseHash(line.OldRoot)
			if err != nil {
				log.Fatal(err)
			}
			check = func(text string) error { return checkRequest(text, origin, oldRoot, logKey) }
		}
		if err := check(text); err != nil {
			log.Fatalf("text %d is refused: %v\n%s", n, err, text)
		}
		changed := []byte(text)
		bit := random.Intn(len(changed) * 8)
		changed[bit/8] ^= 1 << (bit % 8)
		if check(string(changed)) == nil {
			log.Fatalf("text %d is accepted with bit %d changed\n%s", n, bit, text)
		}
		n++
	}
	if err := scanner.Err(); err != nil {
		log.Fatal(err)
	}
	if n != keys.Texts {
		log.Fatalf("%d of %d texts are there", n, keys.Texts)
	}
	fmt.Printf("%d texts were accepted, and refused with one bit changed\n", n)
}
