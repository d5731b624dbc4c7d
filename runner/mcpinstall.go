package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/mcp"
)

// installers are programs that install the server that they start, with the directories
// below the home where they do so.
var installers = map[string]string{
	"npx": ".npm/_npx",
	"uvx": ".cache/uv .local/share/uv",
}

// The scripts run in a server's home, with its installDirs as arguments. A server that
// starts again finds the same home, so nothing is restored.
const (
	restoreScript = `test -e "$1" || { tar -xf - && : >.restored; } || { rm -rf "$@"; false; }`
	saveScript    = `set -- $(ls -d "$@" 2>/dev/null); test $# -eq 0 || tar -cf - "$@"`
	// changedScript prints a name if something was installed since the restoration. It skips
	// the topmost directories, which a mere start changes, for locks.
	changedScript = `find "$@" -mindepth 2 -type d -newer .restored 2>/dev/null | head -n 1`
)

// maxInstallAge is the age at which an archive is dropped: npx doesn't look for newer
// dependencies of an installed package, and uvx for nothing newer at all.
const maxInstallAge = 7 * 24 * time.Hour

// errInstallSize is the error if an installation is larger than the server's memory. The
// home is half of that, but a sparse file can be larger.
var errInstallSize = errors.New("it is larger than the memory of the server")

// openInstalls opens the installations of earlier sessions on the workspace, if any server
// installs itself.
func (m *mcpServers) openInstalls() {
	o := m.s.opts
	installs := func(s *mcpServer) bool { return s.installDirs() != "" }
	if o.Caches.Store == nil || o.Caches.Use == caches.None || !slices.ContainsFunc(m.s.servers, installs) {
		return
	}
	dir, err := filepath.EvalSymlinks(o.Workspace.Path)
	if err == nil {
		m.installs, err = o.Caches.Store.Open(dir, cacheOwner(o.Workspace), nil)
	}
	if err != nil {
		m.s.log.Warn("open what MCP servers installed", zap.Error(err))
	}
}

// installDirs returns the directories where the server installs itself, or "" if they are
// not kept. A server without rules has no network and can install nothing. That includes
// servers defined by the workspace, whose definition the agent may have written. With a
// directory in the workspace, files there could tell npx what to install, and a relative
// path could name a program there.
func (s *mcpServer) installDirs() string {
	if !s.InSandbox() || s.Egress.Policy == nil || s.Dir != "" {
		return ""
	}
	return installers[s.Command]
}

// install returns the path of the archive of a server's installation, or "" if none is kept.
// Another image, arguments, variables or registries make another archive.
func (m *mcpServers) install(s *mcpServer) string {
	if m.installs == nil || s.installDirs() == "" {
		return ""
	}
	text := fmt.Sprintf("%q", [][]string{{m.s.opts.Image.String(), s.Command}, s.Args, s.Env, m.s.network.ServerSources(s.Name)})
	return m.installs.Archive(s.Name, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16])
}

// restoreInstall unpacks a server's earlier installation into its home. Without one, the
// server installs itself again.
func (m *mcpServers) restoreInstall(ctx context.Context, s *mcpServer) {
	f, err := os.Open(m.install(s))
	if errors.Is(err, os.ErrNotExist) { // also for ""
		return
	}
	if err == nil {
		defer func() { _ = f.Close() }()
		var info os.FileInfo
		if info, err = f.Stat(); err == nil && time.Since(info.ModTime()) > maxInstallAge {
			m.dropInstall(s)
			return
		}
	}
	if err == nil {
		err = m.runInHome(ctx, s, restoreScript, f, io.Discard)
		s.restored = err == nil
	}
	if err != nil {
		m.s.log.Warn("restore what MCP server installed", zap.String("server", s.Name), zap.Error(err))
	}
}

// saveInstall keeps a server's installation for later sessions. The server has just started
// for the first time and no tool was called yet. If it was restored and installed something
// else on top, such as a newer version, the archive is dropped: the next session installs
// from scratch.
func (m *mcpServers) saveInstall(s *mcpServer) {
	archive := m.install(s)
	if archive == "" || m.s.opts.Caches.Use == caches.Frozen {
		return
	}
	ctx, cancel := context.WithTimeoutCause(m.ctx, mcp.DefaultStartTimeout, errSlow)
	defer cancel()
	var err error
	if s.restored {
		var changed bytes.Buffer
		err = m.runInHome(ctx, s, changedScript, strings.NewReader(""), &changed)
		if err != nil || changed.Len() > 0 {
			m.dropInstall(s)
		}
	} else {
		err = caches.WriteArchive(archive, func(w io.Writer) error {
			return m.runInHome(ctx, s, saveScript, strings.NewReader(""), w)
		})
	}
	if err != nil {
		m.s.log.Warn("keep what MCP server installed", zap.String("server", s.Name), zap.Error(err))
	}
}

// dropInstall removes the archive of a server that didn't start: with it, the next session
// would fail the same way.
func (m *mcpServers) dropInstall(s *mcpServer) {
	if archive := m.install(s); archive != "" && m.s.opts.Caches.Use != caches.Frozen {
		_ = os.Remove(archive)
	}
}

// runInHome runs a script as a server, in its home, without its variables and network.
func (m *mcpServers) runInHome(ctx context.Context, s *mcpServer, script string, in io.Reader, out io.Writer) error {
	p, err := m.s.exec.StartServer(ctx, func(a sandbox.Attestation) (sandbox.Command, error) {
		cmd, err := m.command(s, a)
		cmd.Argv = append([]string{"sh", "-c", script, "sh"}, strings.Fields(s.installDirs())...)
		cmd.Variables = nil
		cmd.Proxy = false
		return cmd, err
	}, io.Discard, func() {})
	if err != nil {
		return err
	}
	ended := context.AfterFunc(ctx, func() { _ = p.Stop(context.Background()) })
	defer ended()
	go func() {
		_, _ = io.Copy(p.Stdin(), in) // the script may read less
		_ = p.Stdin().Close()
	}()
	n, err := io.Copy(out, io.LimitReader(p.Stdout(), s.Memory+1))
	if n > s.Memory {
		err = errInstallSize
	}
	if err != nil {
		return errors.Join(err, p.Stop(ctx))
	}
	err = p.Wait()
	if end, ok := errors.AsType[*livesandbox.ExitError](err); ok && end.Status.Success() {
		return nil
	}
	return err
}
