package lifecycle

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"software.sslmate.com/src/go-pkcs12"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
)

// BindsLowPorts reports whether the guest needs a capability for listeners
// below port 1024. It drops it once they are open. Root commands have it
// anyway.
func (p *Preparation) BindsLowPorts() bool {
	e := p.Spec.Egress
	return p.LowPorts && p.Spec.User != sandbox.UserRoot && e != nil && (e.Names || len(e.Capture) > 0)
}

// Seccomp returns the seccomp profile for a processor architecture.
func (p *Preparation) Seccomp(arch string) (harden.Seccomp, error) {
	s, err := harden.SeccompFor(arch)
	if err != nil || p.Spec.Egress == nil {
		return s, err
	}
	return s.WithSocketDiagnosis()
}

// egressConfig returns the guest's listeners, or nil.
func (p *Preparation) egressConfig() *wire.Egress {
	plan := p.Spec.Egress
	if plan == nil {
		return nil
	}
	return &wire.Egress{Port: plan.ProxyPort(), Names: plan.Names, Capture: plan.Capture, LowPorts: p.BindsLowPorts()}
}

// expectedListeners returns the listeners that the guest reports for e.
func expectedListeners(e *wire.Egress) (own, captured []string) {
	const all = "tcp 0.0.0.0:"
	own = []string{all + strconv.Itoa(e.Port)}
	if e.Names {
		own = append(own, "udp 127.0.0.1:53", "tcp 127.0.0.1:53")
	}
	for _, port := range e.Capture {
		captured = append(captured, all+strconv.Itoa(port))
	}
	return own, captured
}

func (o *observation) verifyEgress() error {
	want, got := o.prep.egressConfig(), o.hello.Egress
	if want == nil || got == nil {
		if want != nil || got != nil {
			return fmt.Errorf("%w: the guest's listeners are not those that were requested", sandbox.ErrUnavailable)
		}
		return nil
	}
	own, captured := expectedListeners(want)
	list := slices.Concat(own, captured)
	slices.Sort(list)
	if have := slices.Sorted(slices.Values(got.Listening)); !slices.Equal(have, list) {
		return fmt.Errorf("%w: the guest listens at %q, not at %q", sandbox.ErrUnavailable, have, list)
	}
	return nil
}

// describeEgress returns the listeners, which were just verified.
func (o *observation) describeEgress() *sandbox.AttestedEgress {
	e := o.prep.egressConfig()
	if e == nil {
		return nil
	}
	own, _ := expectedListeners(e)
	return &sandbox.AttestedEgress{Listening: own, Capture: e.Capture}
}

// nameFiles make programs look names up at the guest, after /etc/hosts. Without
// a resolv.conf, libraries ask 127.0.0.1 too.
var nameFiles = []struct{ name, path, text string }{
	{"resolv.conf", "/etc/resolv.conf", "nameserver 127.0.0.1\n"},
	// A host's may name services that don't run here, and end there.
	{"nsswitch.conf", "/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n"},
}

// systemBundles are the files that contain all certificates in distributions,
// from crypto/x509: Debian's, Fedora's, SUSE's, Alpine's.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/cert.pem",
	"/var/lib/ca-certificates/ca-bundle.pem",
}

// maxBundle bounds the certificates of an image: Debian's are 220 KiB.
const maxBundle = 4 << 20

// netDir contains the egress plan's files, below the session's files.
const netDir = "net"

// NeedsImageFiles reports whether AddEgressFiles reads the image.
func (p *Preparation) NeedsImageFiles() bool {
	e := p.Spec.Egress
	return !p.Remote && e != nil && (e.Names || len(e.Roots)+len(e.Files) > 0)
}

// addHosts plans a mount over /etc/hosts of an unpacked root file system. In an
// exported container, that file is empty.
func (p *Preparation) addHosts() error {
	if p.Image.Reference.Scheme != images.SchemeRootFS {
		return nil
	}
	return p.replaceFile(rootFiles{p.Image}, "/etc/hosts", HostsFile, false)
}

// AddEgressFiles makes the files by which programs look up names and trust
// certificates, and plans their mounts, for an image with these files. It may
// replace Image.
func (p *Preparation) AddEgressFiles(files ImageFiles) error {
	if !p.NeedsImageFiles() {
		return nil
	}
	if p.Image != nil {
		image := *p.Image
		image.Binds, image.Dirs = slices.Clone(image.Binds), slices.Clone(image.Dirs)
		p.Image = &image
	}
	p.egress = nil
	if p.Spec.Egress.Names {
		for _, f := range nameFiles {
			if err := p.Files.Write(f.name, f.text); err != nil {
				return err
			}
			if err := p.replaceFile(files, f.path, f.name, true); err != nil {
				return err
			}
		}
	}
	if len(p.Spec.Egress.Roots)+len(p.Spec.Egress.Files) == 0 {
		return nil
	}
	if err := p.addEgressDir(); err != nil || len(p.Spec.Egress.Roots) == 0 {
		return err
	}
	return p.addRoots(files)
}

func (p *Preparation) addEgressDir() error {
	dir := p.Files.Path(netDir)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make session files: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask is
		return fmt.Errorf("make session files: %w", err)
	}
	for name, text := range p.Spec.Egress.Files {
		if err := p.Files.Write(netDir+"/"+name, text); err != nil {
			return err
		}
	}
	if p.hasSkeleton() {
		p.Image.Dirs = append(p.Image.Dirs, images.Dir{Path: sandbox.EgressDir, Mode: 0o755})
	}
	p.egress = append(p.egress, images.Bind{Source: dir, Path: sandbox.EgressDir, IsDir: true})
	return nil
}

// replaceFile plans to mount one of the session's files over an image's. It
// keeps an image's symlink, which leads nowhere in a sandbox, or to another of
// these files. add also mounts a file that the image lacks, if its skeleton can
// have a mount point.
func (p *Preparation) replaceFile(files ImageFiles, path, name string, add bool) error {
	mode, err := files.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if add && p.hasSkeleton() && !slices.ContainsFunc(p.Image.Binds, func(b images.Bind) bool { return isBelow(path, b.Path) }) {
			p.Image.Binds = append(p.Image.Binds, images.Bind{Source: p.Files.Path(name), Path: path})
		}
		return nil
	case err != nil:
		return fmt.Errorf("examine %s of image %s: %w", path, p.Spec.Image, err)
	case !mode.IsRegular():
		return nil
	}
	if p.hasSkeleton() {
		if i := slices.IndexFunc(p.Image.Binds, func(b images.Bind) bool { return b.Path == path }); i >= 0 {
			p.Image.Binds[i].Source = p.Files.Path(name)
			return nil
		}
	}
	p.egress = append(p.egress, images.Bind{Source: p.Files.Path(name), Path: path})
	return nil
}

// hasSkeleton reports whether the container's root is assembled from Image's
// parts.
func (p *Preparation) hasSkeleton() bool {
	return p.Image != nil && p.Spec.Root != sandbox.RootEphemeral
}

// addRoots adds certificates to the directory: the plan's, and a bundle with
// the image's too, which is mounted over the image's own bundles.
func (p *Preparation) addRoots(files ImageFiles) error {
	plan := p.Spec.Egress
	var own []byte
	for _, name := range systemBundles {
		mode, err := files.Lstat(name)
		if err == nil && mode.IsRegular() {
			own, err = files.ReadFile(name, maxBundle)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read certificates of image %s: %w", p.Spec.Image, err)
		}
		if len(own) > 0 {
			break
		}
	}
	bundle := bytes.Join([][]byte{bytes.TrimSpace(own), bytes.TrimSpace(plan.Roots), nil}, []byte("\n"))
	content := map[string][]byte{"ca.pem": plan.Roots, "bundle.pem": bundle}
	if plan.JavaRoots {
		store, err := javaStore(bundle)
		if err != nil {
			return err
		}
		content["java.p12"] = store
	}
	for name, text := range content {
		if err := p.Files.Write(netDir+"/"+name, string(text)); err != nil {
			return err
		}
	}
	for _, name := range systemBundles {
		if err := p.replaceFile(files, name, netDir+"/bundle.pem", false); err != nil {
			return err
		}
	}
	return nil
}

// javaStore returns a trust store of a bundle's certificates, except unreadable
// ones.
func javaStore(bundle []byte) ([]byte, error) {
	var list []*x509.Certificate
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			list = append(list, cert)
		}
	}
	store, err := pkcs12.Modern.EncodeTrustStore(list, sandbox.JavaPassword)
	if err != nil {
		return nil, fmt.Errorf("make trust store for Java: %w", err)
	}
	return store, nil
}
