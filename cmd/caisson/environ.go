package main

import (
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/runner"
)

// environ is the environment as NAME=value strings.
type environ []string

// get returns a variable's value, the last one if it is set twice.
func (e environ) get(name string) string {
	value := ""
	for _, v := range e {
		if k, rest, ok := strings.Cut(v, "="); ok && k == name {
			value = rest
		}
	}
	return value
}

// home is the user's home directory, "" where there is none.
func (e environ) home() string { return absoluteOrEmpty(e.get("HOME")) }

// xdgDir returns Caisson's directory below an XDG base directory, "" without a home. A
// relative value counts as unset, as the specification asks.
func (e environ) xdgDir(name, def string) string {
	base := absoluteOrEmpty(e.get(name))
	if base == "" {
		if e.home() == "" {
			return ""
		}
		base = filepath.Join(e.home(), def)
	}
	return filepath.Join(base, "caisson")
}

func (e environ) stateDir() string  { return e.xdgDir("XDG_STATE_HOME", ".local/state") }
func (e environ) configDir() string { return e.xdgDir("XDG_CONFIG_HOME", ".config") }

// cacheDir holds what can be made again; "" if there is no place for it.
func (e environ) cacheDir() string { return e.xdgDir("XDG_CACHE_HOME", ".cache") }

// imageDir holds images, "" if there is no place for them.
func (e environ) imageDir() string { return joinUnder(e.cacheDir(), "images") }

// programDir is where the programs of a release build are unpacked, "" if there is
// no place for them.
func (e environ) programDir() string { return joinUnder(e.cacheDir(), "programs") }

// joinUnder returns the path of name in dir, "" if dir is "".
func joinUnder(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// protectedDirs are the directories that a workspace must keep clear of.
func (e environ) protectedDirs() runner.Protected {
	return runner.Protected{Home: e.home(), State: e.stateDir(), Config: e.configDir(), Cache: e.cacheDir()}
}

func absoluteOrEmpty(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return ""
}

// temporaryDirs are the directories for temporary files.
func (e environ) temporaryDirs() []string {
	dirs := []string{"/tmp", "/var/tmp", "/dev/shm"}
	if dir := absoluteOrEmpty(e.get("TMPDIR")); dir != "" {
		dirs = append(dirs, dir)
	}
	return dirs
}
