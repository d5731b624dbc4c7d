package batch

import (
	"archive/tar"
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

// cachePatterns are the paths of files that tools derive or download, can make again,
// and trust without comparing them to their sources: an agent that forges them would
// decide what tests find. A pattern matches consecutive path elements anywhere, or at
// the root if it begins with a slash. Installed programs, dependencies in the workspace
// and build outputs are not caches: agents are asked to make these.
var cachePatterns = splitPatterns(
	".cache", // XDG: Go's builds and test results, pip, uv, ccache, sccache, Bazel, node_modules/.cache
	"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".numba_cache",
	"go/pkg/mod", "go/pkg/sumdb",
	// Cargo rebuilds what has no fingerprint, so binaries below target can stay.
	".fingerprint", "debug/incremental", "release/incremental", ".cargo/registry", ".cargo/git",
	".ccache", ".sccache", ".ninja_log", ".ninja_deps", ".zig-cache", "zig-cache",
	".gradle", ".m2/repository", ".ivy2/cache", ".sbt/boot", ".nuget/packages", ".konan/cache",
	".npm", ".yarn/berry/cache", ".bun/install/cache", ".local/share/pnpm/store", ".pnpm-store",
	"*.tsbuildinfo", ".eslintcache", ".stylelintcache", ".swc", ".turbo", ".nx/cache", ".parcel-cache", ".vite", ".vitest",
	".next/cache", ".angular/cache", ".rpt2_cache", ".phpunit.result.cache", ".phpunit.cache", ".rubocop_cache", ".julia/compiled", ".triton/cache",
	"/tmp/jest_*", "/tmp/node-compile-cache", "/tmp/v8-compile-cache-*", "/tmp/tsx-*", "/tmp/go-build*",
	"/var/cache/apt",
)

func splitPatterns(list ...string) [][]string {
	var split [][]string
	for _, p := range list {
		split = append(split, strings.Split(p, "/"))
	}
	return split
}

// isCache reports whether an absolute path is a cache or lies in one.
func isCache(name string) bool {
	elements := strings.Split(name, "/") // the first is ""
	return slices.ContainsFunc(cachePatterns, func(pattern []string) bool {
		for i := range max(0, len(elements)-len(pattern)+1) {
			if (pattern[0] == "") != (i == 0) {
				continue
			}
			if slices.EqualFunc(pattern, elements[i:i+len(pattern)], func(p, e string) bool { ok, _ := path.Match(p, e); return ok }) {
				return true
			}
		}
		return false
	})
}

// cacheVariables are variables that name cache directories, besides those with a
// default that matters.
var cacheVariables = []string{
	"NPM_CONFIG_CACHE", "YARN_CACHE_FOLDER", "PYTHONPYCACHEPREFIX", "MYPY_CACHE_DIR", "RUFF_CACHE_DIR", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR",
	"NODE_COMPILE_CACHE", "BABEL_CACHE_PATH", "TURBO_CACHE_DIR", "GRADLE_USER_HOME",
}

// toolCaches are the caches in one environment.
type toolCaches struct {
	// dirs are absolute paths besides cachePatterns, including the home's.
	dirs []string
	// env are variables for the verifier, as NAME=value. They make tools use these
	// caches, whatever the agent's configuration files say.
	env []string
}

// newToolCaches returns the caches for an environment's variables (the last one of a
// name counts), a user's home and a task's working directory.
func newToolCaches(home, workdir string, variables []string) toolCaches {
	var c toolCaches
	get := func(name string) string {
		for _, v := range slices.Backward(variables) {
			if value, ok := strings.CutPrefix(v, name+"="); ok && path.IsAbs(value) {
				return path.Clean(value)
			}
		}
		return ""
	}
	use := func(name, other string) string {
		given := get(name)
		dir := cmp.Or(given, other)
		if dir == "/" || dir == "/tmp" || isWithin(workdir, dir) { // it holds more than a cache
			dir = path.Join(dir, ".cache")
		}
		if dir != "" {
			c.dirs = append(c.dirs, dir)
		}
		if dir != given {
			c.env = append(c.env, name+"="+dir)
		}
		return dir
	}
	for _, name := range cacheVariables {
		if get(name) != "" {
			use(name, "")
		}
	}
	xdg := use("XDG_CACHE_HOME", home+"/.cache")
	gopath, _, _ := strings.Cut(cmp.Or(get("GOPATH"), home+"/go"), ":")
	use("GOCACHE", xdg+"/go-build")
	use("GOMODCACHE", gopath+"/pkg/mod")
	use("PIP_CACHE_DIR", xdg+"/pip")
	use("UV_CACHE_DIR", xdg+"/uv")
	use("npm_config_cache", home+"/.npm")
	use("CCACHE_DIR", xdg+"/ccache")
	use("SCCACHE_DIR", xdg+"/sccache")
	cargo := cmp.Or(get("CARGO_HOME"), home+"/.cargo")
	c.dirs = append(c.dirs, cargo+"/registry", cargo+"/git", home+"/.m2/repository")
	return c
}

// contains reports whether an entry of an archive of changes lies in a cache, or
// replaces a directory above a cache by a symlink, which would move the cache.
func (c toolCaches) contains(h *tar.Header) bool {
	name := changedName(h)
	return isCache(name) || slices.ContainsFunc(c.dirs, func(dir string) bool {
		return isWithin(name, dir) || h.Typeflag == tar.TypeSymlink && isWithin(dir, name)
	})
}

// changedName returns the absolute path that an entry of an archive of changes is
// about.
func changedName(h *tar.Header) string {
	return path.Clean("/" + cmp.Or(archive.ChangedDirectory(h.Name), h.Name))
}

// isWithin reports whether a clean absolute path is dir or lies below it.
func isWithin(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// home returns the commands' home directory in the sandbox.
func (p place) home() string {
	if p.root {
		return "/root"
	}
	return sandbox.HomeDir
}

func (p place) caches(variables []string) toolCaches {
	return newToolCaches(p.home(), p.dirOf(), slices.Concat(p.env, variables))
}
