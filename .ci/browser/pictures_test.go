//go:build pictures

package browser

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// TestPictures writes the pictures of the page and of the report that REPORT names to the
// directory that PICTURES names.
func TestPictures(t *testing.T) {
	dir, report := os.Getenv("PICTURES"), os.Getenv("REPORT") // see make pictures
	s := newSite(t, map[string]string{"cart": cart})
	id, turn := s.session("cart", "make the discount count")
	s.answer(id, turn, "allow", "")
	s.answer(id, turn, "deny", "it is still needed")
	s.await(id, "idle")
	b := s.tab(t, true)
	b.signIn("alice")
	b.open("/s/" + id + "/changes")
	b.wait(`document.readyState === "complete"`)
	b.picture(filepath.Join(dir, "changes.webp"))
	b.run(chromedp.Navigate("file://" + report))
	b.picture(filepath.Join(dir, "report.webp"))
}

// picture writes a light picture of the window.
func (b *tab) picture(path string) {
	b.t.Helper()
	b.run(call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1000, Height: 900, DeviceScaleFactor: 1.5}),
		call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "light"}}}))
	b.wait(`innerWidth === 1000`)
	get[bool](b, `new Promise(done => requestAnimationFrame(() => setTimeout(done, 500, true)))`) // until it is drawn
	b.run(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		quality := int64(80)
		shot, err := cdp.Call(ctx, t, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: "webp", Quality: &quality})
		return errors.Join(err, os.WriteFile(path, shot.Data, 0o644))
	}))
}
