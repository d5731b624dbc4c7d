package oci

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// The image has symlinks to a directory of this machine instead of the files of
// egress. Nothing may be written there or to the image, or be seen of it in the
// container. Plain files are replaced.
func TestEgressFilesOfHostileImage(t *testing.T) {
	t.Parallel()
	for _, root := range []sandbox.RootMode{sandbox.RootReadOnly, sandbox.RootEphemeral} {
		for name, tt := range map[string]struct {
			links []string
			plain bool
		}{
			"plain files":           {nil, true},
			"files":                 {[]string{"etc/resolv.conf", "etc/nsswitch.conf", "etc/ssl/certs/ca-certificates.crt"}, false},
			"directories":           {[]string{"etc", ".caisson"}, false},
			"directory of the plan": {[]string{"etc/ssl", ".caisson/net"}, false},
		} {
			t.Run(string(root)+" "+name, func(t *testing.T) {
				both(t, func(t *testing.T, k Kind) {
					b := newBed(t, k, os.Geteuid())
					image, outside := shellRoot(t), t.TempDir()
					must(t, os.Chmod(outside, 0o777))
					must(t, os.WriteFile(filepath.Join(outside, "resolv.conf"), []byte("outside\n"), 0o666))
					if tt.plain {
						must(t, os.Mkdir(filepath.Join(image, "etc"), 0o755))
						must(t, os.WriteFile(filepath.Join(image, "etc/resolv.conf"), []byte("nameserver 192.0.2.1\n"), 0o644))
					}
					for _, link := range tt.links {
						must(t, os.MkdirAll(filepath.Dir(filepath.Join(image, link)), 0o755))
						must(t, os.Symlink(outside, filepath.Join(image, link)))
					}
					before, inside := listNames(t, image), listNames(t, outside)
					spec := b.spec(t, "hostile-image")
					spec.Image, spec.Root = images.Reference{Scheme: images.SchemeRootFS, Value: image}, root
					spec.Egress = &sandbox.EgressPlan{Names: true, Capture: []int{443}, Roots: certificate(t)}
					sb := b.start(t, spec)
					if sb.Attestation().Egress == nil {
						t.Error("no listeners are attested")
					}
					var out bytes.Buffer
					_, err := sandbox.Run(t.Context(), sb, sandbox.Command{Argv: []string{"/bin/sh", "-c", "names"}, Dir: sandbox.WorkspaceDir, Stdout: &out})
					must(t, err)
					if own := out.String() == "nameserver 127.0.0.1\n"; own != tt.plain || strings.Contains(out.String(), "outside") {
						t.Errorf("resolv.conf is %q", &out)
					}
					must(t, sb.Destroy(t.Context()))
					if after := listNames(t, image); after != before {
						t.Errorf("the image has %s, had %s", after, before)
					}
					if names := listNames(t, outside); names != inside {
						t.Errorf("the directory outside has %s", names)
					}
				})
			})
		}
	}
}

// listNames lists names and modes in a directory, with the sizes of files.
func listNames(t *testing.T, dir string) string {
	t.Helper()
	var text strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		fmt.Fprintln(&text, rel, info.Mode(), info.Size())
		return err
	}))
	return text.String()
}

func certificate(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
