package network

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress"
	"github.com/caisson-run/caisson/tools/egress/ca"
	"github.com/caisson-run/caisson/tools/egress/cache"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
	"github.com/caisson-run/caisson/tools/workspace"
)

// authorityTime bounds the validity of the authority if the session's end is unknown: a chat may
// be open for days. Its key is gone with the session anyway.
const authorityTime = 30 * 24 * time.Hour

// endingTime is how long an authority stays valid after the last turn, for commands that still
// run and clocks that are behind.
const endingTime = time.Hour

func (o *Options) authorityEnd(now time.Time) time.Time {
	end := now.Add(authorityTime)
	if !o.End.IsZero() && o.End.Add(endingTime).Before(end) {
		end = o.End.Add(endingTime)
	}
	return end
}

// cacheDir is a session's own cache, below its directory. It is removed at the end.
const cacheDir = "egress-cache"

type setup struct {
	preset    *preset.Preset
	secrets   *secret.Set // of the agent's commands
	authority *ca.Authority
	lock      *cache.Lock // to write at the end, or nil
	plan      *sandbox.EgressPlan
}

// endsTLS reports whether a policy has the TLS of any host end in Caisson.
func endsTLS(p *rule.Policy) bool {
	return slices.ContainsFunc(append([][]rule.Rule{p.Allow, p.Deny}, p.Within...), func(list []rule.Rule) bool {
		return slices.ContainsFunc(list, rule.Rule.EndsTLS)
	})
}

// prepare makes the authority, the secrets, the presets and the cache, and adds them to the
// server's options.
func (n *Network) prepare(server *egress.Options) (err error) {
	o, s := n.opts, &n.setup
	if s.secrets, err = secret.New(o.Secrets); err != nil {
		return err
	}
	git, err := preset.NewGit(preset.Options{Fetch: o.GitFetch, Push: o.GitPush, GitHeader: s.secrets.GitHeader})
	if err != nil {
		return err
	}
	s.preset = preset.Merge(o.Presets...)
	if len(o.GitFetch)+len(o.GitPush) > 0 {
		s.preset = preset.Merge(append(slices.Clone(o.Presets), git)...)
	}
	if err := n.addServers(); err != nil {
		return err
	}
	s.plan = n.newPlan()
	s.plan.Roots = slices.Clone(o.CA)
	needsRoots, files := s.preset.NeedsRoots, maps.Clone(s.preset.Files)
	for _, m := range n.servers {
		needsRoots = needsRoots || m.preset.NeedsRoots
		maps.Copy(files, m.preset.Files)
	}
	if slices.ContainsFunc(n.policies(), endsTLS) || needsRoots {
		if s.authority, err = ca.New(o.authorityEnd(time.Now())); err != nil {
			return err
		}
		s.plan.Roots = append(s.plan.Roots, s.authority.PEM()...)
	}
	s.plan.JavaRoots = s.preset.NeedsJavaRoots && len(s.plan.Roots) > 0
	s.plan.Files = files
	s.plan.Env = slices.Concat(s.preset.Environment(sandbox.EgressDir), s.secrets.Environment())
	server.Authority, server.Secrets, server.Mirrors = s.authority, n.guardedSecrets(""), s.preset.Mirrors
	if len(o.CA) > 0 {
		server.Roots, err = x509.SystemCertPool()
		if err != nil {
			return fmt.Errorf("read this machine's certificates: %w", err)
		}
		server.Roots.AppendCertsFromPEM(o.CA)
	}
	if len(o.Presets) == 0 || !o.KeepFiles {
		return nil
	}
	return n.openCache(server)
}

func (n *Network) openCache(server *egress.Options) error {
	dir := n.opts.CacheDir
	if dir == "" {
		dir = filepath.Join(n.opts.Dir, cacheDir)
	}
	kept, err := cache.Open(dir, n.opts.CacheDir == "")
	if err != nil {
		return fmt.Errorf("open the cache of registries: %w", err)
	}
	server.Registries = &egress.Registries{Preset: n.setup.preset, Cache: kept}
	if n.opts.LockFile == "" {
		return nil
	}
	// If it is in the workspace, a program may have replaced it.
	f, err := workspace.OpenFile(n.opts.LockFile, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		n.setup.lock = cache.NewLock()
		server.Registries.Lock = n.setup.lock
		return nil
	}
	if err == nil {
		server.Registries.Lock, err = readLock(f)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("read the lock of registries' files: %w", err)
	}
	return nil
}

// maxLockBytes bounds the lock, which is kept in memory.
const maxLockBytes = 64 << 20

func readLock(f *os.File) (*cache.Lock, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxLockBytes {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", f.Name(), maxLockBytes)
	}
	return cache.ReadLock(io.LimitReader(f, maxLockBytes))
}

func (n *Network) closeCache() error {
	var errs []error
	if n.setup.lock != nil {
		f, err := workspace.OpenFile(n.opts.LockFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			_, err = n.setup.lock.WriteTo(f)
			err = errors.Join(err, f.Close())
		}
		errs = append(errs, err)
	}
	if n.opts.CacheDir == "" {
		errs = append(errs, os.RemoveAll(filepath.Join(n.opts.Dir, cacheDir)))
	}
	return errors.Join(errs...)
}

// AuthoritySHA256 returns the hash of the session's authority, or "".
func (n *Network) AuthoritySHA256() string {
	if n.setup.authority == nil {
		return ""
	}
	return n.setup.authority.SHA256()
}
