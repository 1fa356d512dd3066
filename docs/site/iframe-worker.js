/* Search in pages opened from a disk: browsers start no worker there, so its script runs in a hidden
   frame. The theme looks for the name IFrameWorker. */
class IFrameWorker extends EventTarget {
  constructor(url) {
    super()
    this.frame = document.createElement("iframe")
    this.frame.hidden = true
    document.body.appendChild(this.frame)
    this.inner = this.frame.contentWindow
    const page = this.frame.contentDocument
    page.open() // Removes all listeners of the frame.
    this.inner.addEventListener("message", (event) => {
      if (event.data && event.data.toPage) {
        const message = new MessageEvent("message", { data: event.data.toPage })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      }
    })
    page.write(`<html><body><script>
      const send = window.postMessage.bind(window)
      window.postMessage = (data) => send({ toPage: data }, "*")
      window.importScripts = (...urls) => urls.reduce((done, url) => done.then(() =>
        new Promise((resolve, reject) => {
          const script = document.createElement("script")
          script.src = url
          script.onload = resolve
          script.onerror = reject
          document.body.appendChild(script)
        })), Promise.resolve())
      window.toWorker = (data) => window.dispatchEvent(new MessageEvent("toworker", { data }))
      const listen = window.addEventListener.bind(window)
      window.addEventListener = (name, ...rest) =>
        listen(name === "message" ? "toworker" : name, ...rest)
    <\/script><script src="${new URL(url, document.baseURI)}"><\/script></body></html>`)
    page.close()
    this.loaded = new Promise((resolve) => { this.frame.onload = resolve })
  }
  postMessage(data) {
    this.loaded.then(() => this.inner.toWorker(data))
  }
  terminate() {
    this.frame.remove()
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker
  window.Worker = IFrameWorker
}
