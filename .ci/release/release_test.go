package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestRefused: a bad key is refused before anything is built. The control is a good one: only the build, by a go command
// that does nothing, fails.
func TestRefused(t *testing.T) {
	key, err := newTestKey()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := key.secret()
	if err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string][]string{
		"no key":    {"CAISSON_SIGNING_KEY=none"},
		"newer key": {"CAISSON_SIGNING_KEY=" + secret, "SOURCE_DATE_EPOCH=1500000000"},
		"control":   {"CAISSON_SIGNING_KEY=" + secret},
	} {
		dist := filepath.Join(t.TempDir(), "dist")
		cmd := exec.CommandContext(t.Context(), "sh", "../release.sh")
		cmd.Env = append(os.Environ(), append(env, "GO=false", "DIST="+dist, "IMAGE=0")...)
		out, err := cmd.CombinedOutput()
		if _, errDist := os.Stat(dist); err == nil || errDist == nil || strings.Contains(string(out), "CAISSON_SIGNING_KEY can't sign") == (name == "control") {
			t.Errorf("%s: %v, %v: %s", name, err, errDist, out)
		}
	}
}

// The same layers give the same image, whenever and wherever it is made.
func TestImage(t *testing.T) {
	date := time.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC)
	made := func(content string) map[string]string {
		dir := t.TempDir()
		var args []string
		for _, arch := range []string{"amd64", "arm64"} {
			args = append(args, arch)
			for _, layer := range []string{"debian.tar", "caisson.tar"} {
				path := filepath.Join(dir, arch, layer)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, oneFile(t, layer, content+arch), 0o644); err != nil {
					t.Fatal(err)
				}
				args = append(args, path)
			}
		}
		oci := filepath.Join(dir, "oci")
		if err := writeImage("1.2.3", oci, args, date); err != nil {
			t.Fatal(err)
		}
		checkImage(t, oci)
		files := map[string]string{}
		err := fs.WalkDir(os.DirFS(oci), ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(filepath.Join(oci, path))
			files[path] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	one, same, other := made("x"), made("x"), made("y")
	for name, content := range one {
		if same[name] != content {
			t.Errorf("%s differs", name)
		}
	}
	if len(one) != len(same) || one["index.json"] == other["index.json"] {
		t.Errorf("%d and %d files; another content has index.json %s", len(one), len(same), other["index.json"])
	}
}

// readImage returns the images of a layout with their descriptions. It is valid, and has the version.
func readImage(t *testing.T, dir, version string) (v1.ImageIndex, []v1.Descriptor) {
	t.Helper()
	top, err := layout.ImageIndexFromPath(dir)
	if err == nil {
		err = validate.Index(top)
	}
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != version {
		t.Fatalf("index %+v, %v", manifest, err)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	return index, inner.Manifests
}

func checkImage(t *testing.T, dir string) {
	t.Helper()
	index, manifests := readImage(t, dir, "1.2.3")
	var platforms []string
	for _, m := range manifests {
		platforms = append(platforms, m.Platform.String())
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil || config.OS+"/"+config.Architecture != m.Platform.String() || len(config.RootFS.DiffIDs) != 2 || len(config.Config.Entrypoint) != 0 {
			t.Errorf("%s: %+v, %v", m.Platform, config, err)
		}
	}
	if strings.Join(platforms, " ") != "linux/amd64 linux/arm64" {
		t.Errorf("platforms %q", platforms)
	}
}

func oneFile(t *testing.T, name, content string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
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
