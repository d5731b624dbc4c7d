//go:build release

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
)

// forgery changes a copy of a release.
type forgery struct {
	name   string
	change func(t *testing.T, dir string, r *testRelease)
	// installer and apt are in what install.sh and apt print when they refuse it. Empty is not refused.
	installer, apt string
	// each is whether each program that verifies is tried, and the action.
	each bool
}

var forgeries = []forgery{
	{"nothing", func(*testing.T, string, *testRelease) {}, "", "", true},
	{"artefact", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		edit(t, dir, r.archive(), flipped)
		edit(t, dir, "apt/pool/"+r.deb(), flipped)
	}, "has another checksum", "Hash Sum mismatch", false},
	{"artefact and checksum", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		edit(t, dir, r.archive(), flipped)
		resum(t, dir)
		edit(t, dir, "apt/dists/stable/InRelease", func(text []byte) []byte { return bytes.Replace(text, []byte("stable"), []byte("stabel"), 1) })
	}, "not signed by the key", "BADSIG", false},
	{"signature", func(t *testing.T, dir string, _ *testRelease) {
		t.Helper()
		edit(t, dir, "SHA256SUMS.asc", flipped)
		edit(t, dir, "apt/dists/stable/InRelease", flipped)
	}, "not signed by the key", "GPG error", false},
	{"no signature", func(t *testing.T, dir string, _ *testRelease) {
		t.Helper()
		for _, name := range []string{"SHA256SUMS.asc", "apt/dists/stable/InRelease"} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}, "can't be downloaded", "does not have a Release file", false},
	{"signature of another key", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		other, err := newTestKey()
		if err != nil {
			t.Fatal(err)
		}
		edit(t, dir, r.archive(), flipped)
		sums := resum(t, dir)
		edit(t, dir, "SHA256SUMS.asc", func([]byte) []byte { return other.detached(t, sums) })
		edit(t, dir, "apt/dists/stable/InRelease", func(text []byte) []byte {
			signed, _ := clearsign.Decode(text)
			return other.clear(t, string(signed.Plaintext))
		})
	}, "not signed by the key", "NO_PUBKEY", true},
	{"another signed text as the signature", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		edit(t, dir, r.archive(), flipped)
		resum(t, dir)
		edit(t, dir, "SHA256SUMS.asc", func([]byte) []byte { return r.key.clear(t, "anything") })
	}, "is not one signature", "", false},
	{"another signed message, armored as a signature", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		edit(t, dir, r.archive(), flipped)
		resum(t, dir)
		edit(t, dir, "SHA256SUMS.asc", func([]byte) []byte { return r.key.message(t, "anything") })
	}, "not signed by the key", "", true},
	{"an older release", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		sums := strings.ReplaceAll(resum(t, dir), testVersion, "0.0.1")
		edit(t, dir, "SHA256SUMS", func([]byte) []byte { return []byte(sums) })
		edit(t, dir, "SHA256SUMS.asc", func([]byte) []byte { return r.key.detached(t, sums) })
	}, "SHA256SUMS has no caisson-", "", false},
}

// flipped returns a text with one byte in the middle changed.
func flipped(text []byte) []byte {
	text = bytes.Clone(text)
	text[len(text)/2] ^= 1
	return text
}

// edit replaces a file, which may be a hard link of the release's.
func edit(t *testing.T, dir, name string, change func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.Remove(path)
	}
	if err == nil {
		err = os.WriteFile(path, change(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// resum writes SHA256SUMS again and returns it.
func resum(t *testing.T, dir string) string {
	t.Helper()
	edit(t, dir, "SHA256SUMS", func(text []byte) []byte {
		var sums strings.Builder
		for line := range strings.Lines(string(text)) {
			name := strings.Fields(line)[1]
			content, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), name)
		}
		return []byte(sums.String())
	})
	text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// forge makes a copy of the release, of hard links where nothing changes.
func (r *testRelease) forge(t *testing.T, f forgery) string {
	t.Helper()
	dir, err := os.MkdirTemp(shared, "forged-") //nolint:usetesting // hard links need the same file system
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "-al", r.dist+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.change(t, dir, r)
	return dir
}

// TestForgedRelease: install.sh, with each program that verifies, and apt refuse each forged release, and install nothing
// of it. The control is the release itself.
func TestForgedRelease(t *testing.T) {
	r := needRelease(t)
	installer := serve(t, r.dist) // what somebody read before; the mirror is forged
	for _, f := range forgeries {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, r.forge(t, f))
			check := func(what string, installed bool, out, want string) {
				t.Helper()
				if installed != (want == "") || !strings.Contains(out, want) {
					t.Errorf("%s: installed %v, want %q in\n%s", what, installed, want, out)
				}
			}
			for verifier, remove := range map[string]string{"gpgv": "true", "gpg": "rm /usr/bin/gpgv", "sqv": "rm /usr/bin/gpgv /usr/bin/gpg"} {
				if verifier != "gpgv" && !f.each {
					continue
				}
				out, err := place{root: r.root, user: newcomer}.run(t, remove, fmt.Sprintf(`
					curl -fsS -o install.sh %s/install.sh
					status=0
					CAISSON_URL=%s sh install.sh || status=$?
					find .local -type f
					exit $status`, installer, url))
				check("install.sh with "+verifier, err == nil, out, f.installer)
				if left := strings.Contains(out, "\n.local/"); left != (f.installer == "") {
					t.Errorf("install.sh with %s left files: %v\n%s", verifier, left, out)
				}
			}
			if f.apt == "" && f.installer != "" {
				return // apt has no such file
			}
			out, err := place{root: r.root}.run(t, fmt.Sprintf(`
				curl -fsS -o /etc/apt/keyrings/caisson.asc %s/caisson.asc
				echo "deb [signed-by=/etc/apt/keyrings/caisson.asc] %s/apt stable main" >/etc/apt/sources.list.d/caisson.list
				apt-get update; apt-get -qq install caisson; caisson version`, installer, url), "true")
			check("apt", err == nil, out, f.apt)
		})
	}
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
