package preset

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/caisson-run/caisson/tools/egress/cache"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

const maxIndexBytes = 64 << 20

// slots bounds the indexes read at once: each is in memory as a whole.
var slots = make(chan struct{}, 2)

// findDigest calls find with the cached indexes at a URL until one has a digest.
func findDigest(c *cache.Cache, url string, find func(io.Reader) cache.Digest) (d cache.Digest) {
	slots <- struct{}{}
	defer func() { <-slots }()
	c.Visit(url, func(content io.Reader) bool {
		d = find(io.LimitReader(content, maxIndexBytes))
		return d == cache.Digest{}
	})
	return d
}

// newDigest returns a digest in hexadecimal, or the zero value if sum isn't one.
func newDigest(algorithm, sum string) cache.Digest {
	raw, err := hex.DecodeString(sum)
	if err != nil || len(raw) != map[string]int{"sha1": 20, "sha256": 32, "sha512": 64}[algorithm] {
		return cache.Digest{}
	}
	return cache.Digest{Algorithm: algorithm, Sum: hex.EncodeToString(raw)}
}

// digestNPM returns the digest of an npm package, from the document of its name.
func digestNPM(c *cache.Cache, t rule.Target, _ []source) cache.Digest {
	name, file, ok := strings.Cut(t.Path, "/-/")
	if !ok || !strings.HasSuffix(file, ".tgz") {
		return cache.Digest{}
	}
	find := func(r io.Reader) cache.Digest { return readNPM(r, t) }
	plain := t
	plain.Path = name
	if d := findDigest(c, plain.String(), find); d != (cache.Digest{}) {
		return d
	}
	// npm escapes the slash in the name of a scope.
	scope, rest, ok := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	if !ok || !strings.HasPrefix(scope, "@") {
		return cache.Digest{}
	}
	plain.Path = "/" + scope + "%2f" + rest
	return findDigest(c, plain.String(), find)
}

func readNPM(r io.Reader, t rule.Target) cache.Digest {
	var doc struct {
		Versions map[string]struct {
			Dist struct{ Tarball, Integrity, Shasum string }
		}
	}
	if json.NewDecoder(r).Decode(&doc) != nil {
		return cache.Digest{}
	}
	for _, v := range doc.Versions {
		if tarball, err := rule.ParseTarget(v.Dist.Tarball); err != nil || tarball != t {
			continue
		}
		for one := range strings.FieldsSeq(v.Dist.Integrity) {
			encoded, ok := strings.CutPrefix(one, "sha512-")
			if raw, err := base64.StdEncoding.DecodeString(encoded); ok && err == nil {
				return newDigest("sha512", hex.EncodeToString(raw))
			}
		}
		return newDigest("sha1", v.Dist.Shasum)
	}
	return cache.Digest{}
}

// pySeparators are equivalent in names of Python projects.
var pySeparators = regexp.MustCompile(`[-_.]+`)

// pyLink is a link with a digest in an HTML index.
var pyLink = regexp.MustCompile(`href="([^"#]+)#sha256=([0-9a-f]{64})"`)

// digestPip returns the digest of a file of the Python Package Index, from its
// project's index. The file's name begins with the project's.
func digestPip(c *cache.Cache, t rule.Target, sources []source) cache.Digest {
	file := path.Base(t.Path)
	if !strings.Contains(t.Path, "/packages/") {
		return cache.Digest{}
	}
	find := func(r io.Reader) cache.Digest { return readPip(r, t) }
	name, err := url.PathUnescape(strings.TrimSuffix(file, ".metadata"))
	if err != nil || name != file {
		return cache.Digest{} // metadata has another digest
	}
	for _, s := range sources {
		if !strings.HasSuffix(s.url, "/simple/") {
			continue
		}
		// The version follows one of the hyphens.
		for i := range name {
			if name[i] != '-' {
				continue
			}
			project := pySeparators.ReplaceAllString(strings.ToLower(name[:i]), "-")
			if d := findDigest(c, s.url+project+"/", find); d != (cache.Digest{}) {
				return d
			}
		}
	}
	return cache.Digest{}
}

func readPip(r io.Reader, t rule.Target) cache.Digest {
	text, err := io.ReadAll(r)
	if err != nil {
		return cache.Digest{}
	}
	var doc struct {
		Files []struct {
			URL    string
			Hashes map[string]string
		}
	}
	if json.Unmarshal(text, &doc) == nil {
		for _, f := range doc.Files {
			if link, err := rule.ParseTarget(f.URL); err == nil && link == t {
				return newDigest("sha256", f.Hashes["sha256"])
			}
		}
		return cache.Digest{}
	}
	for _, m := range pyLink.FindAllStringSubmatch(string(text), -1) {
		if link, err := rule.ParseTarget(m[1]); err == nil && link == t {
			return newDigest("sha256", m[2])
		}
	}
	return cache.Digest{}
}

// digestCargo returns the digest of a crate, from the index of its name.
func digestCargo(c *cache.Cache, t rule.Target, sources []source) cache.Digest {
	parts := strings.Split(strings.TrimPrefix(t.Path, "/"), "/")
	if t.Host != "static.crates.io" || len(parts) < 3 || parts[0] != "crates" {
		return cache.Digest{}
	}
	name := parts[1]
	version, ok := strings.CutSuffix(strings.TrimPrefix(parts[2], name+"-"), ".crate")
	if len(parts) == 4 && parts[3] == "download" {
		version, ok = parts[2], true
	}
	if !ok {
		return cache.Digest{}
	}
	for _, s := range sources {
		if !s.registry {
			continue
		}
		d := findDigest(c, s.url+cratePath(strings.ToLower(name)), func(r io.Reader) cache.Digest { return readCargo(r, version) })
		if d != (cache.Digest{}) {
			return d
		}
	}
	return cache.Digest{}
}

func readCargo(r io.Reader, version string) cache.Digest {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var line struct{ Vers, Cksum string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Vers == version {
			return newDigest("sha256", line.Cksum)
		}
	}
	return cache.Digest{}
}

func cratePath(name string) string {
	switch {
	case len(name) <= 2:
		return []string{"", "1/", "2/"}[len(name)] + name
	case len(name) == 3:
		return "3/" + name[:1] + "/" + name
	}
	return name[:2] + "/" + name[2:4] + "/" + name
}
