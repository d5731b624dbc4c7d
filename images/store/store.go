package store

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/layer"
)

// Options say where a [Store] keeps images and where it gets them.
type Options struct {
	// Dir is the cache folder, absolute; it is made if it is missing, for its
	// owner alone. Any number of stores, in any number of processes, may share it.
	Dir string
	// Platform is what images must be for, as os/architecture; empty is linux and
	// the architecture of this program. It is the engine's where an engine on
	// another machine runs them.
	Platform string
	// Engine is asked first for an image's name, and builds; nil is none.
	Engine images.Engine
	// Keychain has the registries' credentials; nil is the user's Docker
	// configuration (authn.DefaultKeychain), which may run the credential
	// helper that it names.
	Keychain authn.Keychain
	// PlainHTTP are the registries, as host or host:port, that are spoken to
	// without TLS. Loopback needs no entry, everything else does.
	PlainHTTP []string
	// Transport speaks to registries; nil is one with the proxies of the
	// environment and short timeouts.
	Transport http.RoundTripper
	// ResolveTimeout bounds the time until a registry has said what a name
	// names; zero is 8 s. Downloads are bounded by IdleTimeout alone.
	ResolveTimeout time.Duration
	// IdleTimeout is how long a download may stand still; zero is 30 s.
	IdleTimeout time.Duration
	// Buildctl and Buildah are the builders for build:DIR where there is no
	// engine, as absolute paths that the caller found outside of any workspace;
	// empty is none. The first that is named is used.
	Buildctl, Buildah string
	// BuilderEnv is the whole environment of such a builder, as NAME=value.
	BuilderEnv []string
	// Accounts are put before the entries of /etc/passwd and /etc/group of
	// every image, so that commands have a name; nil is agent, 10001:10001,
	// at home in /home/agent.
	Accounts []Account
	// Limits bound what unpacking may cost.
	Limits layer.Limits
	// Progress gets reports, one at a time; it must return soon. Nil discards.
	Progress func(Progress)
}

// Account is a user and group of the same name that a store adds to images.
type Account struct {
	Name     string // letters, digits, - and _
	UID, GID int
	Home     string // absolute in the container
}

// Pruned is what [Store.Remove] and [Store.Prune] did.
type Pruned struct {
	Images []images.Image // forgotten
	Bytes  int64          // freed on disk
	// Kept are the images that would have gone if they were not in use.
	Kept []images.Image
	// Leftovers counts what dead processes left half made and is gone now.
	Orphans int
}

// Store is a cache of images, shared by all sessions of a user: layers and
// unpacked root filesystems, named by their content, and what each reference
// was found to name. It is safe for concurrent use and needs no closing.
// Whatever is killed, an entry is complete or absent.
//
// An image's name is looked up in the engine first, where there is one, then in
// what was pinned: the first use of a name asks its registry and pins the
// digest; later uses take it without asking, until [Store.Pull] does.
type Store struct {
	o       Options
	blobs   blobs
	reports *reporter
}

var _ images.Source = (*Store)(nil)

// New opens the store in o.Dir and makes it if it is missing. It fails
// with [images.ErrInvalid] for options that can't be, and for a folder that another
// user owns or could write to.
func New(o Options) (*Store, error) {
	o.Platform = cmp.Or(o.Platform, "linux/"+runtime.GOARCH)
	o.ResolveTimeout = cmp.Or(o.ResolveTimeout, 8*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 30*time.Second)
	o.Limits = o.Limits.WithDefaults()
	if o.Transport == nil {
		o.Transport = defaultTransport()
	}
	if o.Accounts == nil {
		o.Accounts = defaultAccounts()
	}
	for _, a := range o.Accounts {
		if err := a.validate(); err != nil {
			return nil, err
		}
	}
	if system, machine, ok := strings.Cut(o.Platform, "/"); !ok || system == "" || machine == "" || strings.Contains(machine, "/") {
		return nil, fmt.Errorf("%w: platform %q: write it as linux/amd64", images.ErrInvalid, o.Platform)
	}
	for _, p := range []string{o.Dir, o.Buildctl, o.Buildah} {
		if p != "" && !filepath.IsAbs(p) || o.Dir == "" {
			return nil, fmt.Errorf("%w: image store: path %q must be absolute", images.ErrInvalid, p)
		}
	}
	o.Dir = filepath.Clean(o.Dir)
	if err := makeDirs(o.Dir); err != nil {
		return nil, err
	}
	return &Store{o: o, blobs: blobs{o.Dir}, reports: &reporter{report: o.Progress}}, nil
}

// makeStore makes the folders of a store. The first is checked, those below
// are then nobody else's.
func makeDirs(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make image store: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("make image store: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("image store %s: %w: it is no folder", dir, images.ErrInvalid)
	}
	if err := checkOwner(dir, info); err != nil {
		return err
	}
	for _, sub := range []string{"blobs/sha256", "trees", "refs", "locks", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("make image store: %w", err)
		}
	}
	return nil
}

// with finds ref and does something with it, all under the fetch lock, and
// notes that ref was used.
func (s *Store) withImage(ctx context.Context, ref images.Reference, refresh bool, do func(f *foundImage) error) error {
	unlock, err := s.lock(ctx, lockFetch, true, pollStore)
	if err != nil {
		return err
	}
	defer unlock()
	f, err := s.findImage(ctx, ref, refresh)
	if err != nil {
		return err
	}
	defer f.close()
	if f.fresh && !refresh {
		known, err := s.loadRecord(f.record.Source, f.name)
		if err != nil {
			return err
		}
		f.fresh = known == nil || known.ID != f.record.ID || known.Digest != f.record.Digest || known.EngineID != f.record.EngineID
	}
	if !f.fresh {
		s.touchRecord(f.record.Source, f.name)
		return do(f)
	}
	// The pin comes last: an image that can't be fetched, or is refused, leaves
	// the one before where it was.
	if err := do(f); err != nil {
		return err
	}
	return s.saveRecord(ctx, f.name, f.record)
}

// Resolve says what ref names now, without fetching its layers: as
// [Store.RootFS] would take it. An engine's image has to be taken from the
// engine for that, and a build has to be built.
func (s *Store) Resolve(ctx context.Context, ref images.Reference) (images.Image, error) {
	var im images.Image
	err := s.withImage(ctx, ref, false, func(f *foundImage) error {
		im = s.describeRecord(f.record)
		return nil
	})
	return im, err
}

// RootFS is [images.Source.RootFS]. What isn't cached is fetched and unpacked, once,
// however many ask for it; the others wait. Cancelling ctx gives up waiting and
// fetching and leaves nothing half made. It needs Linux.
//
// Errors wrap [images.ErrInvalid], [images.ErrUnsupported], [images.ErrNotFound], [images.ErrUnauthorized],
// [images.ErrUnreachable], [images.ErrDigest] or [images.ErrRefused] (a [*layer.Error]).
func (s *Store) RootFS(ctx context.Context, ref images.Reference) (root *images.RootFS, release func(), err error) {
	err = s.withImage(ctx, ref, false, func(f *foundImage) error {
		root, release, err = s.leaseTree(ctx, ref, f)
		return err
	})
	if err != nil {
		if release != nil { // it could not be remembered
			release()
		}
		return nil, nil, err
	}
	return root, release, nil
}

// take makes the tree of what was found and leases it.
func (s *Store) leaseTree(ctx context.Context, ref images.Reference, f *foundImage) (*images.RootFS, func(), error) {
	if runtime.GOOS != "linux" {
		return nil, nil, fmt.Errorf("image %s: %w: a root filesystem can be unpacked on Linux alone: use an engine", ref, images.ErrUnsupported)
	}
	release, err := s.acquireLease(ctx, f.record.Tree)
	if err != nil {
		return nil, nil, err
	}
	if err := s.makeTree(ctx, ref, f); err != nil {
		release()
		return nil, nil, err
	}
	root, err := s.describeTree(ref, f.record)
	if err != nil {
		release()
		return nil, nil, err
	}
	s.reports.sendReport(Progress{Reference: ref, Phase: PhaseDone})
	return root, sync.OnceFunc(release), nil
}

// Archive is [images.Source.Archive]: layers go out as they are stored, checked
// against their digests, and nothing is tagged. After an error what was written
// is worthless.
func (s *Store) Archive(ctx context.Context, ref images.Reference, w io.Writer) (id string, err error) {
	err = s.withImage(ctx, ref, false, func(f *foundImage) error {
		im, err := f.open(ctx)
		if err != nil {
			return err
		}
		id = im.id
		if err := writeArchive(ctx, im, w); err != nil {
			return fmt.Errorf("image %s: write archive: %w", ref, err)
		}
		s.reports.sendReport(Progress{Reference: ref, Phase: PhaseDone})
		return nil
	})
	return id, err
}

// Pull asks anew what ref names, pins it, and fetches it; on Linux it is
// unpacked too. Sessions that run keep what they have.
func (s *Store) Pull(ctx context.Context, ref images.Reference) (images.Image, error) {
	var im images.Image
	release := func() {}
	err := s.withImage(ctx, ref, true, func(f *foundImage) error {
		if runtime.GOOS != "linux" {
			if _, err := f.open(ctx); err != nil {
				return err
			}
			im = s.describeRecord(f.record)
			return nil
		}
		_, leased, err := s.leaseTree(ctx, ref, f)
		if err != nil {
			return err
		}
		release, im = leased, s.describeRecord(f.record)
		return nil
	})
	release() // not before it is remembered: nothing else keeps it
	return im, err
}
