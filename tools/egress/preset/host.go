package preset

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const maxConfigBytes = 1 << 20

// Registry is a registry named in the configuration of a package manager.
type Registry struct {
	URL string
	// For says which packages come from the registry: an npm scope such as @org, or
	// [Extra]. "" is all others, which then don't come from the public registry.
	For string
}

// Extra is [Registry.For] of registries that a program asks besides its main one.
const Extra = "extra"

// Places are directories of this machine.
type Places struct {
	// Home is the user's home directory. Config is XDG_CONFIG_HOME or its default.
	Home, Config string
	// Workspace is the session's workspace, or "".
	Workspace string
}

// ReadRegistries returns the registries in the user's own configuration of package
// managers, by preset, for [Options.Registries]. Presets without any are absent.
// Credentials are not used. Files in the workspace are not read, because commands
// can change them: ignored are the ones that exist.
func ReadRegistries(at Places) (registries map[string][]Registry, ignored []string, err error) {
	out := map[string][]Registry{}
	var failed []error
	for _, f := range []struct {
		preset    string
		dir, name string
		parse     func(section, key, value string) []Registry
	}{
		{"npm", at.Home, ".npmrc", parseNPM},
		{"pip", at.Home, ".pip/pip.conf", parsePip}, // the next one is stronger
		{"pip", at.Config, "pip/pip.conf", parsePip},
		{"cargo", at.Home, ".cargo/config.toml", parseCargo},
		{"go", at.Config, "go/env", parseGo},
	} {
		path := filepath.Join(f.dir, f.name)
		if isWithin(path, at.Workspace) {
			if _, err := os.Lstat(path); err == nil {
				ignored = append(ignored, path)
			}
			continue
		}
		text, err := readConfig(path)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for _, r := range parseConfig(text, f.parse) {
			r.URL, err = registryURL(r.URL)
			if err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", path, err))
				continue
			}
			if !slices.Contains(out[f.preset], r) {
				out[f.preset] = append(out[f.preset], r)
			}
		}
	}
	return out, ignored, errors.Join(failed...)
}

// isWithin reports whether a path, or the file it leads to, is in the workspace.
func isWithin(path, workspace string) bool {
	if workspace == "" {
		return false
	}
	paths := []string{path}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		paths = append(paths, real)
	}
	return slices.ContainsFunc(paths, func(path string) bool {
		below, err := filepath.Rel(workspace, path)
		return err == nil && filepath.IsLocal(below)
	})
}

// readConfig returns the text of a file, or "" if it doesn't exist.
func readConfig(path string) (string, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > maxConfigBytes {
		return "", fmt.Errorf("%s is not a file of at most %d bytes", path, maxConfigBytes)
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// parseConfig calls parse with each setting in a file of key=value lines in
// sections, and returns all its results.
func parseConfig(text string, parse func(section, key, value string) []Registry) []Registry {
	var out []Registry
	section, key := "", ""
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || trimmed[0] == '#' || trimmed[0] == ';':
		case trimmed[0] == '[':
			section, key = strings.Trim(trimmed, "[] "), ""
		case line[0] == ' ' || line[0] == '\t': // continues a value
			if key != "" {
				out = append(out, parse(section, key, trimmed)...)
			}
		default:
			name, value, ok := strings.Cut(trimmed, "=")
			if !ok {
				continue
			}
			key = strings.TrimSpace(name)
			out = append(out, parse(section, key, strings.Trim(strings.TrimSpace(value), `"'`))...)
		}
	}
	return out
}

func parseNPM(_, key, value string) []Registry {
	if key == "registry" {
		return []Registry{{URL: value}}
	}
	if scope, ok := strings.CutSuffix(key, ":registry"); ok && strings.HasPrefix(scope, "@") {
		return []Registry{{URL: value, For: scope}}
	}
	return nil
}

func parsePip(section, key, value string) (list []Registry) {
	use, ok := map[string]string{"index-url": "", "extra-index-url": Extra}[key]
	if section != "global" && section != "install" || !ok {
		return nil
	}
	for s := range strings.FieldsSeq(value) {
		list = append(list, Registry{URL: s, For: use})
	}
	return list
}

func parseCargo(section, key, value string) []Registry {
	if strings.HasPrefix(section, "source.") && key == "registry" || strings.HasPrefix(section, "registries.") && key == "index" {
		if strings.HasPrefix(value, "sparse+") {
			return []Registry{{URL: value}}
		}
	}
	return nil
}

func parseGo(_, key, value string) (list []Registry) {
	if key != "GOPROXY" {
		return nil
	}
	for s := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' || r == '|' }) {
		if s != "direct" && s != "off" {
			list = append(list, Registry{URL: s})
		}
	}
	return list
}

// configureNPM makes npm, pnpm and Yarn use the user's own registries. All three
// read npm_config_registry. Scopes go to a file: shells don't pass on variables with
// their names.
func configureNPM(p *Preset, own []Registry) {
	var scopes strings.Builder
	for _, r := range own {
		if r.For == "" {
			p.Env = append(p.Env, "npm_config_registry="+r.URL)
			continue
		}
		scopes.WriteString(r.For + ":registry=" + r.URL + "\n")
	}
	if scopes.Len() > 0 {
		p.Files = map[string]string{"npmrc": scopes.String()}
		p.Env = append(p.Env, "npm_config_globalconfig="+FilesPlaceholder+"/npmrc")
	}
}

// configurePip makes pip use the user's own indexes. It accepts those without TLS
// only if their hosts are trusted, as they must be in the user's own configuration.
func configurePip(p *Preset, own []Registry) {
	var extra, trusted []string
	for _, r := range own {
		if r.For == "" {
			p.Env = append(p.Env, "PIP_INDEX_URL="+r.URL)
		} else {
			extra = append(extra, r.URL)
		}
		if u, err := url.Parse(r.URL); err == nil && u.Scheme == "http" {
			trusted = append(trusted, u.Host)
		}
		for _, l := range pipLayouts {
			if base, ok := strings.CutSuffix(r.URL, l.index); ok {
				p.sources = append(p.sources, source{url: base + l.files, kind: kindPyFile})
			}
		}
	}
	if len(extra) > 0 {
		p.Env = append(p.Env, "PIP_EXTRA_INDEX_URL="+strings.Join(extra, " "))
	}
	if len(trusted) > 0 {
		p.Env = append(p.Env, "PIP_TRUSTED_HOST="+strings.Join(trusted, " "))
	}
}

// pipLayouts tell where servers keep the files of an index.
var pipLayouts = []struct{ index, files string }{
	{"/simple/", "/packages/"}, // Artifactory, Nexus, pypiserver
	{"/simple/", "/files/"},    // GitLab
	{"/+simple/", "/+f/"},      // devpi
}
