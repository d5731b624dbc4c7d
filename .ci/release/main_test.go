package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

const testVersion = "9.8.7"

// cleanups remove what all tests share.
var cleanups []func() error

func TestMain(m *testing.M) {
	status := m.Run()
	for _, clean := range cleanups {
		if err := clean(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}

// testKey is a key that signs releases, as gpg makes them.
type testKey struct{ *openpgp.Entity }

func newTestKey() (testKey, error) {
	before := func() time.Time { return time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC) } // any commit of a release
	entity, err := openpgp.NewEntity("Test", "", "test@example.org", &packet.Config{Algorithm: packet.PubKeyAlgoRSA, RSABits: 3072, Time: before})
	return testKey{entity}, err
}

// secret returns the armored secret key.
func (k testKey) secret() (string, error) {
	var text bytes.Buffer
	w, err := armor.Encode(&text, openpgp.PrivateKeyType, nil)
	if err != nil {
		return "", err
	}
	err = errors.Join(k.SerializePrivate(w, nil), w.Close())
	return text.String() + "\n", err
}

// detached returns the armored signature of a text.
func (k testKey) detached(t *testing.T, text string) []byte {
	t.Helper()
	var signature bytes.Buffer
	if err := openpgp.ArmoredDetachSign(&signature, k.Entity, strings.NewReader(text), nil); err != nil {
		t.Fatal(err)
	}
	return append(signature.Bytes(), '\n')
}

// clear returns a text with its signature around it.
func (k testKey) clear(t *testing.T, text string) []byte {
	t.Helper()
	var signed bytes.Buffer
	w, err := clearsign.Encode(&signed, k.PrivateKey, nil)
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return append(signed.Bytes(), '\n')
}

// message returns a text as a signed message, with the armor of a signature.
func (k testKey) message(t *testing.T, text string) []byte {
	t.Helper()
	var signed bytes.Buffer
	armored, err := armor.Encode(&signed, openpgp.SignatureType, nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := openpgp.Sign(armored, k.Entity, nil, nil)
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err == nil {
		err = errors.Join(w.Close(), armored.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return append(signed.Bytes(), '\n')
}
