package fetch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"go.uber.org/zap"
)

// cache keeps responses of one session: bodies as files named by their SHA-256,
// which stay as evidence of what the model saw, and by which URL they came in
// memory. It is safe for concurrent use.
type cache struct {
	dir      string // "" keeps nothing
	maxBytes int64
	log      *zap.Logger

	mu    sync.Mutex
	byURL map[string]Response // without their bodies
	files map[string]bool     // by SHA-256
	bytes int64
}

func newCache(dir string, maxBytes int64, log *zap.Logger) *cache {
	return &cache{dir: dir, maxBytes: maxBytes, log: log, byURL: map[string]Response{}, files: map[string]bool{}}
}

// get gives what came for a URL, if its file still holds that.
func (c *cache) get(url string) (Response, bool) {
	c.mu.Lock()
	res, ok := c.byURL[url]
	c.mu.Unlock()
	if !ok {
		return Response{}, false
	}
	body, err := os.ReadFile(filepath.Join(c.dir, res.SHA256))
	sum := sha256.Sum256(body)
	if err != nil || hex.EncodeToString(sum[:]) != res.SHA256 {
		c.log.Warn("a kept response is gone or changed", zap.String("sha256", res.SHA256), zap.Error(err))
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.byURL, url)
		return Response{}, false
	}
	res.Body, res.Cached = body, true
	return res, true
}

// put keeps a response where there is room; one that can't be kept is only
// fetched again.
func (c *cache) put(url string, res Response) {
	if c.dir == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.files[res.SHA256] {
		if c.bytes+int64(len(res.Body)) > c.maxBytes {
			delete(c.byURL, url) // what is kept is not what the server says now
			return
		}
		if err := c.writeFile(res.SHA256, res.Body); err != nil {
			delete(c.byURL, url)
			c.log.Warn("a response can't be kept", zap.Error(err))
			return
		}
		c.files[res.SHA256] = true
		c.bytes += int64(len(res.Body))
	}
	res.Body = nil
	c.byURL[url] = res
}

// write makes a file whole or not at all.
func (c *cache) writeFile(sum string, body []byte) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("make folder of responses: %w", err)
	}
	f, err := os.CreateTemp(c.dir, "new-*")
	if err != nil {
		return fmt.Errorf("keep response: %w", err)
	}
	_, err = f.Write(body)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(c.dir, sum))
	}
	if err != nil {
		if gone := os.Remove(f.Name()); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return fmt.Errorf("keep response: %w", err)
	}
	return nil
}
