// SPDX-License-Identifier: Apache-2.0

package tokenize

// sglangGenerate lays out SGLang's /generate: text or input_ids, one prompt or
// a batch, with media and adapters for all or one for each.
func (rd *Reader) sglangGenerate(f *fields) Reason {
	prompts := f[keyText]
	if rd.isNull(prompts) {
		prompts = f[keyInputIDs]
	}
	media := sglangMedia{
		images: dealer{node: f[keyImageData]},
		video:  dealer{node: f[keyVideoData]},
		audio:  dealer{node: f[keyAudioData]},
	}
	adapters := dealer{}
	if rd.kindOf(prompts) != arrayValue || rd.hasNumbers(prompts) {
		if !rd.isNull(prompts) {
			rd.sglangPrompt(prompts, &media, &adapters)
		}
		return ""
	}
	count := rd.length(prompts)
	media.images = rd.deal(f[keyImageData], count)
	media.video = rd.deal(f[keyVideoData], count)
	media.audio = rd.deal(f[keyAudioData], count)
	if rd.kindOf(f[keyLoRAPath]) == arrayValue {
		adapters = rd.deal(f[keyLoRAPath], count)
	}
	for c, end := rd.elements(prompts); c < end; c = rd.scanner.nodes[c].next {
		if !rd.sglangPrompt(c, &media, &adapters) {
			return ReasonTooManyValues
		}
	}
	return ""
}

type sglangMedia struct{ images, video, audio dealer }

// sglangPrompt adds one prompt. It fails when there are too many.
func (rd *Reader) sglangPrompt(n uint32, media *sglangMedia, adapters *dealer) bool {
	first := rd.begin()
	rd.media(rd.next(&media.images), imageTokens)
	rd.media(rd.next(&media.video), videoTokens)
	rd.media(rd.next(&media.audio), audioTokens)
	switch rd.kindOf(n) {
	case stringValue:
		rd.addText(n)
	case arrayValue:
		for c, end := rd.elements(n); c < end; c = rd.scanner.nodes[c].next {
			if rd.kindOf(c) == numbersValue {
				rd.addNumbers(c)
			}
		}
	}
	root := rd.root
	if adapters.list {
		root = rd.chainRoot(rd.hash(tagRoot, rd.stringOf(rd.next(adapters))), rd.req.CacheSalt)
	}
	return rd.endPromptAt(first, root)
}

// dealer gives each prompt of a batch its own element of a list as long as the
// batch, or all prompts the same value.
type dealer struct {
	node, end uint32
	list      bool
}

func (rd *Reader) deal(n uint32, count int) dealer {
	if count == 0 || rd.length(n) != count {
		return dealer{node: n}
	}
	first, end := rd.elements(n)
	return dealer{node: first, end: end, list: true}
}

func (rd *Reader) next(d *dealer) uint32 {
	n := d.node
	if d.list {
		if n >= d.end {
			return 0
		}
		d.node = rd.scanner.nodes[n].next
	}
	return n
}
