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
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/images/layer"
	"github.com/caisson-run/caisson/images/store/internal/reader"
	"github.com/caisson-run/caisson/limits/state"
)

// Options configures a [Store].
type Options struct {
	// Dir is the absolute cache directory. If it is missing, it is created for
	// its owner alone. Stores in any number of processes may share it.
	Dir string
	// Platform is the images' required platform, as os/architecture; empty
	// means linux and this program's architecture. If an engine on another
	// machine runs the images, it is the engine's.
	Platform string
	// Engine is asked first for an image's name, and builds; nil means no
	// engine.
	Engine images.Engine
	// Keychain has the registries' credentials; nil means the user's Docker
	// configuration (authn.DefaultKeychain), which may run its credential
	// helper.
	Keychain authn.Keychain
	// PlainHTTP are registries, as host or host:port, that may be used without
	// TLS. Loopback needs no entry.
	PlainHTTP []string
	// Transport is the transport to registries; nil means one with the
	// environment's proxies and short timeouts.
	Transport http.RoundTripper
	// ResolveTimeout bounds resolving a name in a registry; zero means 8 s.
	// Downloads are bounded only by IdleTimeout.
	ResolveTimeout time.Duration
	// IdleTimeout bounds a download's time without data; zero means 30 s.
	IdleTimeout time.Duration
	// Buildctl and Buildah are the builders for build:DIR without an engine, as
	// absolute paths outside any workspace, or "". The first that is set is
	// used.
	Buildctl, Buildah string
	// BuildNetwork opens a network for the commands of Engine's builds; nil
	// means no network. See [images.BuildOptions].
	BuildNetwork func(ctx context.Context, dir string) (*images.BuildNetwork, error)
	// BuilderEnv is the complete environment of Buildctl and Buildah, as
	// NAME=value.
	BuilderEnv []string
	// Accounts precede the entries in every image's /etc/passwd and /etc/group,
	// so that commands have a name; nil means agent, 10001:10001, with the home
	// /home/agent.
	Accounts []images.Account
	// Limits bound the cost of unpacking.
	Limits layer.Limits
	// Progress, if not nil, is called with reports, one at a time, and must
	// return soon.
	Progress func(Progress)
}

// Pruned is the result of [Store.Remove] and [Store.Prune].
type Pruned struct {
	Images []images.Image // forgotten
	Bytes  int64          // freed on disk
	// Kept are the images in use that were not forgotten.
	Kept []images.Image
	// Orphans is the number of removed damaged records and dead processes'
	// temporary directories.
	Orphans int
}

// Store is a cache of images shared by a user's sessions: layers and unpacked
// root filesystems, named by their content, and the image that each reference
// named. It is safe for concurrent use and needs no closing. Whichever process
// is killed, an entry is complete or absent.
//
// A name is looked up in the engine first, if any, then among the pins. The
// first use of a name asks its registry and pins the digest. Later uses take
// the pin, until [Store.Pull] renews it.
type Store struct {
	o       Options
	locks   locks
	records records
	trees   trees
	blobs   blobs
	reports *reporter
	reading reader.Options
}

var _ images.Source = (*Store)(nil)

// New opens the store in o.Dir and creates it if it is missing. It fails with
// [images.ErrInvalid] for invalid options and for a directory that another user
// owns or could write to.
func New(o Options) (*Store, error) {
	o.Platform = cmp.Or(o.Platform, "linux/"+runtime.GOARCH)
	o.ResolveTimeout = cmp.Or(o.ResolveTimeout, 8*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 30*time.Second)
	o.Limits = o.Limits.WithDefaults()
	if o.Transport == nil {
		o.Transport = reader.DefaultTransport()
	}
	if o.Accounts == nil {
		o.Accounts = []images.Account{{Name: "agent", UID: host.DefaultUID, GID: host.DefaultGID, Home: "/home/agent"}}
	}
	for _, a := range o.Accounts {
		if err := validateAccount(a); err != nil {
			return nil, err
		}
	}
	if system, machine, ok := strings.Cut(o.Platform, "/"); !ok || system == "" || machine == "" || strings.Contains(machine, "/") {
		return nil, fmt.Errorf("%w: invalid platform %q: want OS/ARCH, such as linux/amd64", images.ErrInvalid, o.Platform)
	}
	for _, p := range []string{o.Dir, o.Buildctl, o.Buildah} {
		if p != "" && !filepath.IsAbs(p) || o.Dir == "" {
			return nil, fmt.Errorf("%w: image store: invalid path %q: want an absolute path", images.ErrInvalid, p)
		}
	}
	o.Dir = filepath.Clean(o.Dir)
	if err := makeDirs(o.Dir); err != nil {
		return nil, err
	}
	held := locks{o.Dir}
	return &Store{
		o: o, locks: held, records: records{o.Dir, o.Platform, held}, trees: trees{o.Dir, o.Accounts, held}, blobs: blobs{o.Dir},
		reports: &reporter{report: o.Progress},
		reading: reader.Options{
			Platform: o.Platform, Limits: o.Limits, Keychain: o.Keychain, PlainHTTP: o.PlainHTTP, Transport: o.Transport, IdleTimeout: o.IdleTimeout,
		},
	}, nil
}

// makeDirs creates a store's directories. Checking the first one's owner
// protects those below it.
func makeDirs(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make image store: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("make image store: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("image store %s: %w: not a directory", dir, images.ErrInvalid)
	}
	if why := state.UnsafeReason(info); why != "" {
		return fmt.Errorf("image store %s: %w: it %s: use a directory of your own", dir, images.ErrInvalid, why)
	}
	for _, sub := range []string{"blobs/sha256", "trees", "refs", "locks", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("make image store: %w", err)
		}
	}
	return nil
}

// withImage finds ref and calls do with it under the fetch lock. If do
// succeeds, it records the use of ref.
func (s *Store) withImage(ctx context.Context, ref images.Reference, refresh bool, do func(f *foundImage) error) error {
	unlock, err := s.locks.lock(ctx, lockFetch, true)
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
		known, err := s.records.loadRecord(f.record.Source, f.name)
		if err != nil {
			return err
		}
		f.fresh = known == nil || known.ID != f.record.ID || known.Digest != f.record.Digest || known.EngineID != f.record.EngineID
	}
	if !f.fresh {
		s.records.touchRecord(f.record.Source, f.name)
		return do(f)
	}
	// Write the pin last: if an image can't be fetched or is refused, the
	// previous pin stays.
	if err := do(f); err != nil {
		return err
	}
	return s.records.saveRecord(ctx, f.name, f.record)
}

// Resolve returns the image that ref names now and [Store.RootFS] would use,
// without fetching its layers. For that it exports an engine's image, or runs a
// build.
func (s *Store) Resolve(ctx context.Context, ref images.Reference) (images.Image, error) {
	var im images.Image
	err := s.withImage(ctx, ref, false, func(f *foundImage) error {
		im = describeRecord(s, f.record)
		return nil
	})
	return im, err
}

// RootFS implements [images.Source]. An image that isn't cached is fetched and
// unpacked once; other callers wait. Canceling ctx stops waiting and fetching
// and leaves nothing incomplete.
//
// Errors wrap [images.ErrInvalid], [images.ErrUnsupported],
// [images.ErrNotFound], [images.ErrUnauthorized], [images.ErrUnreachable],
// [images.ErrDigest] or [images.ErrRefused] (a [*layer.Error]).
func (s *Store) RootFS(ctx context.Context, ref images.Reference) (root *images.RootFS, release func(), err error) {
	return s.rootFS(ctx, ref, false)
}

// OwnedRootFS implements [images.Source]. Its tree differs from RootFS's.
func (s *Store) OwnedRootFS(ctx context.Context, ref images.Reference) (root *images.RootFS, release func(), err error) {
	return s.rootFS(ctx, ref, true)
}

func (s *Store) rootFS(ctx context.Context, ref images.Reference, owners bool) (root *images.RootFS, release func(), err error) {
	err = s.withImage(ctx, ref, false, func(f *foundImage) error {
		key := f.record.Tree
		if owners {
			key = ownedKey(key)
		}
		root, release, err = s.leaseTree(ctx, ref, f, key)
		return err
	})
	if err != nil {
		if release != nil { // the record could not be saved
			release()
		}
		return nil, nil, err
	}
	return root, release, nil
}

// leaseTree takes a lease on f's tree and makes the tree if it is missing.
func (s *Store) leaseTree(ctx context.Context, ref images.Reference, f *foundImage, key string) (*images.RootFS, func(), error) {
	release, err := s.locks.acquireLease(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	if err := s.makeTree(ctx, ref, f, key); err != nil {
		release()
		return nil, nil, err
	}
	root, err := s.trees.describeTree(ref, f.record, key)
	if err != nil {
		release()
		return nil, nil, err
	}
	s.reports.sendReport(Progress{Reference: ref, Phase: PhaseDone})
	return root, sync.OnceFunc(release), nil
}

// Archive implements [images.Source]. Layers are written as they are stored,
// checked against their digests, and nothing is tagged. After an error, discard
// the output.
func (s *Store) Archive(ctx context.Context, ref images.Reference, w io.Writer) (id string, err error) {
	err = s.withImage(ctx, ref, false, func(f *foundImage) error {
		im, err := f.open(ctx)
		if err != nil {
			return err
		}
		id = im.ID
		if err := reader.WriteArchive(ctx, im, w); err != nil {
			return fmt.Errorf("image %s: write archive: %w", ref, err)
		}
		s.reports.sendReport(Progress{Reference: ref, Phase: PhaseDone})
		return nil
	})
	return id, err
}

// Pull resolves ref again, pins the result and fetches and unpacks it. Running
// sessions keep their image.
func (s *Store) Pull(ctx context.Context, ref images.Reference) (images.Image, error) {
	var im images.Image
	release := func() {}
	err := s.withImage(ctx, ref, true, func(f *foundImage) error {
		_, leased, err := s.leaseTree(ctx, ref, f, f.record.Tree)
		if err != nil {
			return err
		}
		release, im = leased, describeRecord(s, f.record)
		return nil
	})
	release() // the record protects the tree now
	return im, err
}

// Phase is a step in a [Store]'s work.
type Phase string

// The phases, in the order for a registry's image. A cached image has none.
const (
	PhaseResolve  Phase = "resolve"  // the reference is being resolved
	PhaseWait     Phase = "wait"     // another process is fetching the same image
	PhaseBuild    Phase = "build"    // a builder runs; Text is a line of its output
	PhaseSave     Phase = "save"     // the engine exports the image
	PhaseDownload Phase = "download" // of one layer
	PhaseUnpack   Phase = "unpack"   // of one layer
	PhaseDone     Phase = "done"     // the image is ready
)

// Progress reports on a [Store]'s work.
type Progress struct {
	Reference images.Reference
	Phase     Phase
	// Digest is the layer's digest, if the phase has a layer.
	Digest string
	// Done and Total are bytes of the layer's stored form; Total may be 0 for
	// unknown. A layer's phase ends with Done == Total.
	Done, Total int64
	// Text is a line of a builder's output, which is unchecked: sanitise it for
	// display.
	Text string
}

// reporter passes on one report at a time, and for a layer at most one per 100
// ms except the first and last.
type reporter struct {
	report func(Progress)
	mu     sync.Mutex
	last   map[string]time.Time
}

func (r *reporter) sendReport(p Progress) {
	if r == nil || r.report == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Digest != "" {
		key := string(p.Phase) + p.Digest
		now := time.Now()
		if p.Done > 0 && p.Done != p.Total && now.Sub(r.last[key]) < 100*time.Millisecond {
			return
		}
		if r.last == nil {
			r.last = map[string]time.Time{}
		}
		r.last[key] = now
		if p.Done == p.Total {
			delete(r.last, key)
		}
	}
	r.report(p)
}
