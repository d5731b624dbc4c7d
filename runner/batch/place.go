package batch

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools/workspace"
)

// ImageStore resolves tasks' images and copies directories out of them. [store.Store]
// is one.
type ImageStore interface {
	Resolve(ctx context.Context, ref images.Reference) (images.Image, error)
	Export(ctx context.Context, ref images.Reference, name, dir string) (store.Exported, error)
}

type place struct {
	image images.Reference
	name  string // the image's, as in the task
	id    string // the image's, or ""
	// workspace is a host directory that no trial changes, and target its mount point.
	workspace, target string
	// skills is a host directory with the image's skills, or "".
	skills string
	// workdir is where commands run, or "" for target.
	workdir string
	root    bool
	env     []string // the image's, as NAME=value
}

// changedDirs returns the directories whose changes are kept.
func (p place) changedDirs() []string {
	if !p.root {
		return []string{p.target}
	}
	return []string{"/", p.target, "/tmp"}
}

// places prepares environments once. It is safe for concurrent use.
type places struct {
	images ImageStore
	def    images.Reference
	// dir has the workspaces. gitEnv is git's environment.
	dir    string
	gitEnv []string

	mu   sync.Mutex
	made map[string]*preparation
}

type preparation struct {
	once  sync.Once
	place place
	err   error
}

// preparePlace returns an environment's place. Failures are not kept: the next call
// tries again.
func (p *places) preparePlace(ctx context.Context, e task.Environment) (place, error) {
	git := task.Git{}
	if e.Git != nil {
		git = *e.Git
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %q %v", e.Image, e.Workdir, e.Workspace, e.SkillsDir, git, e.Root))
	key := hex.EncodeToString(sum[:8])
	p.mu.Lock()
	made, ok := p.made[key]
	if !ok {
		made = &preparation{}
		p.made[key] = made
	}
	p.mu.Unlock()
	made.once.Do(func() {
		made.place, made.err = p.makePlace(ctx, e, filepath.Join(p.dir, key))
	})
	if made.err != nil {
		p.mu.Lock()
		if p.made[key] == made {
			delete(p.made, key)
		}
		p.mu.Unlock()
	}
	return made.place, made.err
}

func (p *places) makePlace(ctx context.Context, e task.Environment, dir string) (_ place, err error) {
	out := place{image: p.def, name: e.Image, workspace: dir, target: e.Workdir, root: e.Root}
	if e.BuildTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, e.BuildTime, fmt.Errorf("the image was not ready within %s", e.BuildTime))
		defer cancel()
	}
	if e.Image != "" {
		if out.image, err = images.ParseReference(e.Image); err != nil {
			return out, err
		}
	}
	workdir := ""
	if out.image.Scheme != images.SchemeHost {
		im, err := p.images.Resolve(ctx, out.image)
		if err != nil {
			return out, errors.Join(err, context.Cause(ctx))
		}
		out.id = im.ID
		out.env = im.Config.Env
		workdir = im.Config.WorkingDir
		if out.image.Scheme == images.SchemeBuild && im.ID != "" { // built once, even if the directory changes
			if pinned, err := images.ParseReference(im.ID); err == nil {
				if _, err := p.images.Resolve(ctx, pinned); err == nil {
					out.image = pinned
				}
			}
		}
	}
	if err := workspace.RemoveTree(dir); err != nil {
		return out, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return out, err
	}
	if !e.Root {
		out.target = cmp.Or(out.target, sandbox.WorkspaceDir)
		return out, p.fillWorkspace(ctx, e, dir)
	}
	if e.SkillsDir != "" {
		out.skills = dir + "-skills"
		err := workspace.RemoveTree(out.skills)
		if err == nil {
			_, err = p.images.Export(ctx, out.image, e.SkillsDir, out.skills)
		}
		if err != nil {
			return out, fmt.Errorf("skills_dir %s: %w", e.SkillsDir, err)
		}
	}
	out.target = cmp.Or(out.target, workdir)
	if out.target != "" && sandbox.CheckTarget(out.target) == nil {
		_, err = p.images.Export(ctx, out.image, out.target, dir)
		if errors.Is(err, images.ErrNotFound) { // make the directory
			err = os.MkdirAll(dir, 0o755)
		}
		if !errors.Is(err, images.ErrInvalid) {
			return out, err
		}
	}
	// Nothing can be mounted at such a path, for example / or a symlink: the directory
	// is part of the root, and the workspace is an empty directory elsewhere.
	out.workdir, out.target = cmp.Or(out.target, "/"), sandbox.WorkspaceDir
	return out, errors.Join(workspace.RemoveTree(dir), os.Mkdir(dir, 0o755))
}

// fillWorkspace copies the task's workspace, so that trials don't depend on later
// changes to the original.
func (p *places) fillWorkspace(ctx context.Context, e task.Environment, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	switch {
	case e.Git != nil:
		return checkOut(ctx, *e.Git, p.gitEnv, dir)
	case e.Workspace == "":
		return nil
	}
	info, err := os.Stat(e.Workspace)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return unpackFile(e.Workspace, dir)
	}
	read, write := io.Pipe()
	go func() { write.CloseWithError(archive.Pack(write, e.Workspace, archive.PackOptions{Name: "."})) }()
	err = archive.Unpack(read, dir, archive.Bounds{})
	return errors.Join(err, read.Close())
}

func unpackFile(file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	var r io.Reader = f
	if strings.HasSuffix(file, ".gz") || strings.HasSuffix(file, ".tgz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			return fmt.Errorf("unpack %s: %w", file, err)
		}
		r = z
	}
	if err := archive.Unpack(r, dir, archive.Bounds{}); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// checkOut fetches one commit of a repository. It executes nothing in the repository,
// and fetches no submodules.
func checkOut(ctx context.Context, g task.Git, env []string, dir string) error {
	for _, args := range [][]string{
		{"init", "--quiet", "--template="},
		{"fetch", "--quiet", "--depth=1", "--no-tags", "--", g.URL, g.Commit},
		{"checkout", "--quiet", "--detach", g.Commit},
	} {
		cmd, err := programs.Command(ctx, env, nil, "git", append([]string{
			"-C", dir, "-c", "protocol.allow=never", "-c", "protocol.https.allow=always", "-c", "protocol.ssh.allow=always", "-c", "protocol.file.allow=always",
			"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.symlinks=true",
		}, args...)...)
		if err != nil {
			return err
		}
		cmd.Env = append(cmd.Env, "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_LFS_SKIP_SMUDGE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s %s: %w: %s", args[0], g.URL, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
