// Package caches keeps the caches of build tools and package managers between
// the sessions of a workspace. A cache is a directory in the state directory
// that is mounted into the sandboxes of only that workspace.
//
//	STATE/caches/ID/workspace.json  the workspace, its owner
//	STATE/caches/ID/NAME            one cache; NAME is its escaped mount point
//	STATE/caches/ID/.NAME           a file that Caisson makes for the tools of a cache
//	STATE/caches/ID/SERVER.KEY.tar  what an MCP server installed, which no sandbox mounts
//	STATE/caches/ID.lock            shared while a session uses the caches
//	STATE/caches/lock               held while caches are opened or removed
//
// The content of caches was written by commands and is not trusted. Caisson
// never runs, parses or follows any of it.
package caches

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-run/caisson/sandbox"
)

// Use is how a session's sandbox uses its workspace's caches.
type Use string

// The uses. The zero value means Writable.
const (
	// Writable keeps what commands write: in bind mode at once, in overlay mode
	// when the session's changes are applied.
	Writable Use = "writable"
	// Frozen shows commands the caches as they are when the session starts, and
	// drops what commands write. A session that judges another's work may use
	// it if the judged one also used Frozen; otherwise that one could have
	// forged the caches.
	Frozen Use = "frozen"
	// None mounts no caches. A session that judges another can always use it.
	None Use = "none"
)

// ParseUse returns the use with the given name; "" means [Writable].
func ParseUse(name string) (Use, error) {
	switch u := cmp.Or(Use(name), Writable); u {
	case Writable, Frozen, None:
		return u, nil
	}
	return "", fmt.Errorf("unknown use of caches %q: want %s, %s or %s", name, Writable, Frozen, None)
}

// Cache is a set of directories that commands find at fixed places, and the
// variables that point tools there.
type Cache struct {
	// Name is a preset's, or a directory in the home directory, such as
	// ~/.gradle.
	Name    string
	Targets []string
	// Env are variables as NAME=value. The user's override them.
	Env []string
	// Config is a file for the tools, or nil.
	Config *ConfigFile
}

// ConfigFile is a file that Caisson makes, in a separate directory that
// commands can't change.
type ConfigFile struct {
	Path, Text string // Path is in the sandbox
}

// Target returns the directory's mount point.
func (f ConfigFile) Target() string { return path.Dir(f.Path) }

const home = sandbox.HomeDir + "/"

var presets = []Cache{
	{Name: "go", Targets: []string{home + ".cache/go-build", home + "go/pkg/mod"}, Env: []string{
		"GOCACHE=" + home + ".cache/go-build", "GOMODCACHE=" + home + "go/pkg/mod",
	}},
	{Name: "npm", Targets: []string{home + ".npm"}, Env: []string{"npm_config_cache=" + home + ".npm"}},
	// A cache is on another file system than the workspace, where uv can't make
	// hard links.
	{Name: "pip", Targets: []string{home + ".cache/pip", home + ".cache/uv"}, Env: []string{
		"PIP_CACHE_DIR=" + home + ".cache/pip", "UV_CACHE_DIR=" + home + ".cache/uv", "UV_LINK_MODE=copy",
	}},
	// Without config.toml and bin, which cargo would obey and run.
	{Name: "cargo", Targets: []string{home + ".cargo/registry", home + ".cargo/git"}, Env: []string{"CARGO_HOME=" + home + ".cargo"}},
	// Maven 3.8 and older don't know MAVEN_ARGS.
	{Name: "maven", Targets: []string{home + ".m2/repository"}, Env: []string{"MAVEN_OPTS=-Dmaven.repo.local=" + home + ".m2/repository"}},
	{Name: "apt", Targets: []string{home + ".cache/apt"}, Env: []string{"APT_CONFIG=" + aptConfig}, Config: &ConfigFile{aptConfig, aptText}},
}

// aptConfig is in a directory of the root, because a command can rename
// directories in its home directory.
const aptConfig = "/.caisson-apt/apt.conf"

// aptText makes apt keep lists and archives in the cache. It makes directories
// only below Dir::State and Dir::Cache; dpkg's state is the image's. Files in
// the cache can't be given to the user _apt. The command apt removes installed
// archives unless told to keep them.
const aptText = `Dir::Cache "` + home + `.cache/apt/";
Dir::Cache::archives "archives/";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::State "` + home + `.cache/apt/";
Dir::State::lists "lists/";
Dir::State::status "/var/lib/dpkg/status";
Dir::State::extended_states "/var/lib/apt/extended_states";
APT::Sandbox::User "root";
Binary::apt::APT::Keep-Downloaded-Packages "true";
`

// Presets returns the names of the presets.
func Presets() []string {
	var names []string
	for _, c := range presets {
		names = append(names, c.Name)
	}
	return names
}

// Parse returns the cache with the given name: a preset's, or a directory in
// the home directory, written as ~/DIR.
func Parse(name string) (Cache, error) {
	if i := slices.IndexFunc(presets, func(c Cache) bool { return c.Name == name }); i >= 0 {
		return presets[i], nil
	}
	dir, ok := strings.CutPrefix(name, "~/")
	switch {
	case !ok:
		return Cache{}, fmt.Errorf("unknown cache %q: want %s, or a directory below the home directory such as ~/.gradle", name, strings.Join(Presets(), ", "))
	case dir == "" || dir == "." || path.Clean("/"+dir) != "/"+dir || strings.ContainsFunc(dir, isSpecial):
		return Cache{}, fmt.Errorf("%q is not a directory below the home directory: want one such as ~/.gradle in its shortest form", name)
	case len(dir) > maxTarget:
		return Cache{}, fmt.Errorf("the cache %.40s… has a name of more than %d bytes", name, maxTarget)
	}
	return Cache{Name: name, Targets: []string{home + dir}}, nil
}

// ParseList returns the caches with the given names. None may be inside
// another.
func ParseList(names []string) ([]Cache, error) {
	var list []Cache
	for _, name := range names {
		c, err := Parse(name)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	_, err := Targets(list)
	return list, err
}

// maxTarget bounds a directory in the home directory: escaped, it is one file
// name.
const maxTarget = 70

func isSpecial(r rune) bool {
	return unicode.IsControl(r) || r == utf8.RuneError || strings.ContainsRune(`\:,"`, r)
}

// Targets returns the mount points of caches, sorted, each once. It returns an
// error if one is inside another.
func Targets(list []Cache) ([]string, error) {
	var all []string
	for _, c := range list {
		all = append(all, c.Targets...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for _, outer := range all {
		for _, inner := range all {
			if strings.HasPrefix(inner, outer+"/") {
				return nil, fmt.Errorf("the cache %s lies in the cache %s: keep one of them", shortenHome(inner), shortenHome(outer))
			}
		}
	}
	return all, nil
}

// shortenHome returns a mount point as people write it.
func shortenHome(target string) string {
	if rest, ok := strings.CutPrefix(target, home); ok {
		return "~/" + rest
	}
	return target
}

// Env returns the variables of caches.
func Env(list []Cache) []string {
	var env []string
	for _, c := range list {
		env = append(env, c.Env...)
	}
	return env
}

// setOwner gives a directory to the workspace's owner, if this process is root.
// Other users own their workspaces, or accept that new files are theirs.
func setOwner(dir *os.File, owner Owner) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return dir.Chown(owner.UID, owner.GID)
}

// OwnerOf returns the owner of a file.
func OwnerOf(info fs.FileInfo) Owner {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return Owner{int(stat.Uid), int(stat.Gid)}
	}
	return Owner{}
}
