package fetch

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/moby/sys/atomicwriter"
	"go.uber.org/zap"
)

// cache keeps the responses of one session, with an index by URL in memory. Bodies
// are files named by their SHA-256, which stay as evidence of what the model saw.
// It is safe for concurrent use.
type cache struct {
	dir      string // "" disables the cache
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

// get returns the response for a URL if its file is unchanged.
func (c *cache) get(url string) (Response, bool) {
	c.mu.Lock()
	res, ok := c.byURL[url]
	c.mu.Unlock()
	if !ok {
		return Response{}, false
	}
	body, err := os.ReadFile(filepath.Join(c.dir, res.SHA256))
	if err != nil || fmt.Sprintf("%x", sha256.Sum256(body)) != res.SHA256 {
		c.log.Warn("cached response is missing or changed", zap.String("sha256", res.SHA256), zap.Error(err))
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.byURL, url)
		delete(c.files, res.SHA256) // the next response writes it again
		return Response{}, false
	}
	res.Body, res.Cached = body, true
	return res, true
}

// put stores a response if there is room. Otherwise the URL is fetched again the
// next time.
func (c *cache) put(url string, res Response) {
	if c.dir == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.files[res.SHA256] {
		if c.bytes+int64(len(res.Body)) > c.maxBytes {
			delete(c.byURL, url) // the stored response is out of date
			return
		}
		if err := c.writeFile(res.SHA256, res.Body); err != nil {
			delete(c.byURL, url)
			c.log.Warn("response can't be cached", zap.Error(err))
			return
		}
		c.files[res.SHA256] = true
		c.bytes += int64(len(res.Body))
	}
	res.Body = nil
	c.byURL[url] = res
}

func (c *cache) writeFile(sum string, body []byte) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("create directory of responses: %w", err)
	}
	if err := atomicwriter.WriteFile(filepath.Join(c.dir, sum), body, 0o600); err != nil {
		return fmt.Errorf("write response: %w", err)
	}
	return nil
}
