// A page that is opened from the disk may not start a worker, which the search needs. There, run the worker's script in a
// hidden frame instead: messages are the same, only the thread is that of the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise(loaded => {
        const script = frame.contentDocument.createElement("script")
        script.src = url
        script.onload = loaded
        frame.contentDocument.head.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
