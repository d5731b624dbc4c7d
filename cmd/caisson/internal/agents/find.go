// Package agents finds the programs of other people's agents on this machine, and makes
// the command line, the variables and the files with which they run in a sandbox.
package agents

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// Root is the directory in the sandbox that has the directories of agents.
const Root = "/opt/agents"

// Agent is an agent of the configuration.
type Agent struct {
	Name string
	config.Agent
	// HostDir is the absolute path of Dir, or "".
	HostDir string
}

// New returns the agent with a name. The error is a [config.Error].
func New(c *config.Config, name string) (Agent, error) {
	settings, err := c.Agent(name)
	if err != nil {
		return Agent{}, err
	}
	a := Agent{Name: name, Agent: settings}
	if a.Dir != nil {
		a.HostDir, err = c.ExpandDir(settings)
	}
	return a, err
}

// Program is an agent's program, on this machine or in the image.
type Program struct {
	// Mount has the program's directory, read-only. It is nil if the program is in the
	// image.
	Mount *runner.UserMount
	// Path is the program in the sandbox. If it is a script for Node.js, Node is the
	// program that runs it: [ImageNode], or one beside it.
	Path, Node string
	// Version is "" if unknown.
	Version string
	// Source is "dir", "image", "caisson" for [Finder.Installed], or "PATH".
	Source string
}

// ImageNode is the Node.js of the image, found on PATH.
const ImageNode = "node"

// MissingError reports an agent that can't be used as it is on this machine.
type MissingError struct {
	Name string
	Err  error
}

func (e *MissingError) Error() string {
	return "the agent " + e.Name + " can't be used: " + e.Err.Error()
}

func (e *MissingError) Unwrap() error { return e.Err }

// ErrNotInstalled means that no program of the agent was found.
var ErrNotInstalled = errors.New("it is not installed")

// Finder finds programs of agents. It runs none of them.
type Finder struct {
	// Home is the user's home directory, or "". Path is the value of PATH.
	Home, Path string
	// Installed is the directory with the packages that Caisson installed, or "".
	Installed string
	// Writable are the directories that commands can write to.
	Writable []string
}

// Dir returns the directory for an agent's package in Installed, or "".
func (f *Finder) Dir(name string) string {
	if f.Installed == "" {
		return ""
	}
	return filepath.Join(f.Installed, name)
}

// Find returns an agent's program. A package that Caisson installed comes before one on
// PATH. The error is a [*MissingError].
func (f *Finder) Find(a Agent) (Program, error) {
	p, err := f.find(a)
	if err == nil && p.Mount != nil {
		err = f.check(p.Mount.From)
	}
	if err != nil {
		return Program{}, &MissingError{Name: a.Name, Err: err}
	}
	return p, nil
}

func (f *Finder) find(a Agent) (Program, error) {
	word := a.Command[0]
	switch {
	case a.Image != nil && *a.Image:
		return Program{Path: word, Source: "image"}, nil
	case a.Dir != nil:
		return f.findIn(a)
	}
	if own := f.Dir(a.Name); own != "" {
		p, err := f.findPackage(a, filepath.Join(own, "node_modules", ".bin", word), true)
		if real, realErr := filepath.EvalSymlinks(own); err == nil && (realErr != nil || !isBelow(p.Mount.From, real)) {
			err = fmt.Errorf("%s leads out of %s", word, own) // a symlink in its package
		}
		if !errors.Is(err, ErrNotInstalled) {
			p.Source = "caisson"
			return p, err
		}
	}
	p, err := f.findPackage(a, word, false)
	p.Source = "PATH"
	return p, err
}

// findIn finds the program in the user's directory.
func (f *Finder) findIn(a Agent) (Program, error) {
	real, err := filepath.EvalSymlinks(a.HostDir)
	if err != nil {
		return Program{}, err
	}
	file, err := f.resolve(filepath.Join(real, a.Command[0]))
	if err != nil {
		return Program{}, err
	}
	if !isBelow(file, real) {
		return Program{}, fmt.Errorf("%s leads out of %s", a.Command[0], a.HostDir)
	}
	p := mounted(real, file, Root+"/"+a.Name)
	p.Source, p.Version = "dir", readPackage(real).Version
	return p, nil
}

// findPackage finds the program of an npm package or of an installer, as resolve does.
// whole is set if the packages beside it belong to it.
func (f *Finder) findPackage(a Agent, file string, whole bool) (Program, error) {
	file, err := f.resolve(file)
	if err != nil {
		return Program{}, err
	}
	name := packageName(*a.NPM)
	dir, ok := packageDir(file, name)
	if !ok {
		return standalone(a.Name, file)
	}
	about := readPackage(dir)
	from, to := dir, Root+"/"+a.Name
	if whole || !about.isWhole(dir) { // its dependencies are beside it
		from = strings.TrimSuffix(dir, string(filepath.Separator)+filepath.FromSlash(name))
		to += "/node_modules"
	}
	if !isBinary(file) {
		file = findNative(from, name, file)
	}
	p := mounted(from, file, to)
	p.Version = about.Version
	if found, err := filepath.Glob(filepath.Join(from, nodePackage("*"), "bin", "node")); p.Node != "" && err == nil && len(found) > 0 {
		p.Node = mounted(from, found[0], to).Path
	}
	return p, nil
}

// nodeVersion is the Node.js that runs installed agents.
const nodeVersion = "22.23.3"

// nodePackage returns the package with Node.js for an architecture.
func nodePackage(arch string) string { return "node-linux-" + arch }

// Packages returns what npm must install for an agent that has NPM: its package, and
// Node.js unless it is known to need none.
func (a *Agent) Packages() []string {
	if natives[packageName(*a.NPM)] != "" {
		return []string{*a.NPM}
	}
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return []string{*a.NPM, nodePackage(arch) + "@" + nodeVersion}
}

// resolve returns a program's path without symlinks. A name without / is looked up on
// PATH. The error is [ErrNotInstalled] if there is none.
func (f *Finder) resolve(name string) (string, error) {
	find := &programs.Finder{Executable: noExecutable, Writable: func() []string { return f.Writable }}
	var configured *string
	if strings.Contains(name, "/") {
		configured = &name
	} else {
		find.Path = f.Path
	}
	file, err := find.Find(configured, path.Base(name))
	if missing, ok := errors.AsType[*programs.NotFoundError](err); ok {
		return "", cmp.Or(missing.Err, ErrNotInstalled)
	}
	return file, err
}

// noExecutable keeps the directory of this program out of the search.
func noExecutable() (string, error) { return "", fs.ErrNotExist }

// mounted returns the program file of the directory from, which is mounted at to.
func mounted(from, file, to string) Program {
	rel, err := filepath.Rel(from, file)
	if err != nil {
		rel = filepath.Base(file) // both are absolute
	}
	p := Program{Mount: &runner.UserMount{From: from, To: to, ReadOnly: true}, Path: path.Join(to, filepath.ToSlash(rel))}
	if slices.Contains([]string{".js", ".cjs", ".mjs"}, filepath.Ext(file)) {
		p.Node = ImageNode
	}
	return p
}

// standalone returns a program that an installer put into a directory for this agent,
// such as ~/.local/share/claude/versions/2.1.0 or ~/.opencode/bin/opencode.
func standalone(name, file string) (Program, error) {
	dir := filepath.Dir(file)
	own := slices.ContainsFunc(strings.Split(dir, string(filepath.Separator)), func(element string) bool {
		return strings.TrimPrefix(element, ".") == name
	})
	if !own {
		return Program{}, fmt.Errorf("%s lies beside other programs; set agents.%s.dir to a directory that has only the agent", file, name)
	}
	p := mounted(dir, file, Root+"/"+name)
	if base := filepath.Base(file); base[0] >= '0' && base[0] <= '9' {
		p.Version = base
	}
	return p, nil
}

// packageName returns the package of package@version.
func packageName(spec string) string { return spec[:strings.LastIndex(spec, "@")] }

// packageDir returns the directory of the npm package that a file belongs to, if the
// package has the name.
func packageDir(file, name string) (string, bool) {
	mark := string(filepath.Separator) + filepath.Join("node_modules", filepath.FromSlash(name)) + string(filepath.Separator)
	i := strings.LastIndex(file, mark)
	if i < 0 {
		return "", false
	}
	return file[:i+len(mark)-1], true
}

// description is a package.json.
type description struct {
	Version              string
	Dependencies         map[string]string
	OptionalDependencies map[string]string
}

const maxPackageJSON = 1 << 20

// readPackage returns the zero value if there is no valid package.json.
func readPackage(dir string) description {
	var d description
	name := filepath.Join(dir, "package.json")
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxPackageJSON {
		return d
	}
	text, err := os.ReadFile(name)
	if err != nil || json.Unmarshal(text, &d) != nil {
		return description{}
	}
	return d
}

// isWhole reports whether a package has all its dependencies in its own directory.
func (d description) isWhole(dir string) bool {
	if len(d.Dependencies)+len(d.OptionalDependencies) == 0 {
		return true
	}
	info, err := os.Stat(filepath.Join(dir, "node_modules"))
	return err == nil && info.IsDir()
}

// natives are packages with programs in packages of their own for each kind of machine,
// by their places below node_modules. They need no node.
var natives = map[string]string{
	"@anthropic-ai/claude-code": "@anthropic-ai/claude-code-linux-*/claude",
	"@openai/codex":             "@openai/codex-linux-*/vendor/*/bin/codex",
	"opencode-ai":               "opencode-linux-*/bin/opencode",
}

// findNative returns the package's program for this machine, or else file. from is the
// package's directory or its node_modules.
func findNative(from, name, file string) string {
	pattern, ok := natives[name]
	if !ok {
		return file
	}
	for _, dir := range []string{from, filepath.Join(from, "node_modules"), filepath.Join(from, filepath.FromSlash(name), "node_modules")} {
		found, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern)))
		if err != nil {
			continue
		}
		for _, native := range found {
			if real, err := filepath.EvalSymlinks(native); err == nil && isBelow(real, from) && isBinary(real) {
				return real
			}
		}
	}
	return file
}

// isBinary reports whether a file is an ELF program.
func isBinary(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // only read
	magic := make([]byte, 4)
	n, _ := f.Read(magic)
	return bytes.Equal(magic[:n], []byte("\x7fELF"))
}

// credentials are places in a home directory with keys of agents and other programs.
var credentials = []string{
	".aws", ".azure", ".claude.json", ".claude/.credentials.json", ".codex/auth.json", ".config/caisson", ".config/gcloud", ".config/gh", ".config/git", ".docker",
	".gemini/oauth_creds.json", ".git-credentials", ".gnupg", ".kube", ".local/share/keyrings", ".local/share/opencode/auth.json", ".local/state/caisson",
	".netrc", ".npmrc", ".password-store", ".qwen/oauth_creds.json", ".ssh",
}

// check refuses a directory that must not be mounted. runner.OpenMounts refuses more.
func (f *Finder) check(dir string) error {
	for _, writable := range f.Writable {
		real, err := filepath.EvalSymlinks(writable)
		if err == nil && (isBelow(dir, real) || isBelow(real, dir)) {
			return fmt.Errorf("its directory %s is, has or is in %s, to which commands in the sandbox can write", dir, writable)
		}
	}
	holds := func(place string) error {
		if real, err := filepath.EvalSymlinks(place); err == nil && isBelow(real, dir) {
			return fmt.Errorf("its directory %s is or has %s", dir, place)
		}
		return nil
	}
	if err := cmp.Or(holds("/"), holds(f.Home)); err != nil || f.Home == "" {
		return err
	}
	for _, name := range credentials {
		place := filepath.Join(f.Home, name)
		if err := holds(place); err != nil {
			return err
		}
		if real, err := filepath.EvalSymlinks(place); err == nil && isBelow(dir, real) {
			return fmt.Errorf("its directory %s is in %s", dir, place)
		}
	}
	return nil
}

// isBelow reports whether a path is dir or below it. Both have no symlinks.
func isBelow(name, dir string) bool {
	rel, err := filepath.Rel(dir, name)
	return err == nil && filepath.IsLocal(rel)
}

// maxHashed bounds the bytes that [Program.Hash] reads.
const maxHashed = 8 << 30

// Hash returns a hash of the names, kinds and contents in the program's directory, as
// "sha256:…". It is "" for a program in the image.
func (p *Program) Hash() (string, error) {
	if p.Mount == nil {
		return "", nil
	}
	var size int64
	err := filepath.WalkDir(p.Mount.From, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if size += info.Size(); size > maxHashed {
			return fmt.Errorf("%s has more than %s, too much to hash", p.Mount.From, limits.FormatSize(maxHashed))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return task.HashTree(p.Mount.From)
}
